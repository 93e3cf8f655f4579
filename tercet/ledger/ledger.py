"""The ledger's database: rows written and written again, gateways that are alive, and those that are not.

A row has the number that its gateway gave it, so whatever is written twice is there once: after an error that leaves
open whether something was written, it is written again.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from tercet.database import Database
from tercet.errors import LedgerError

from .migrations import SCHEMA, migrate, version_of
from .row import GATEWAY_LOST, Cancellation, Outcome, Refusals, Row, StageTimes
from .tables import cancellations, gateways, refusals, requests

# A gateway that has not said for so long that it lives does not: its open rows are closed.
LEASE_S = 15.0
# Rows that are forgotten at a time: what is written meanwhile waits.
FORGET_ROWS = 1_000

_DAY_S = 86_400
_ROW_FIELDS = tuple(item.name for item in dataclasses.fields(Row) if item.name not in ("stages", "cancellations"))
_STAGE_FIELDS = tuple(item.name for item in dataclasses.fields(StageTimes))
# How each database says "or else update", which is no standard.
_INSERTS: Mapping[str, Callable[[sa.Table], Any]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


class Ledger:
    """Rows in a database. `clock` gives seconds since the epoch. Every method, and the constructor, may raise
    LedgerError."""

    def __init__(self, where: str, clock: Callable[[], float]) -> None:
        self._database = Database(where, LedgerError, "a gateway that starts")
        self._clock = clock
        kind = self._database.kind
        if kind not in _INSERTS:
            raise LedgerError(f"{self.name} is of {kind}; the ledger is kept by {' or '.join(_INSERTS)}")
        insert = _INSERTS[kind]
        self._put_gateway = _upsert(insert, gateways, keep=("started_at",))
        # Words of a gateway that come late, or twice, open nothing again.
        self._put_request = _upsert(insert, requests, unless=("outcome", Outcome.OPEN.value))
        self._put_refusals = _upsert(insert, refusals)
        self._put_cancellation = _upsert(insert, cancellations)

    @property
    def name(self) -> str:
        """Where it is, without a password."""
        return self._database.name

    @property
    def file(self) -> Path | None:
        """That of SQLite; None for a server."""
        return self._database.file

    def create(self) -> None:
        """Makes it, unless it is there, and brings one of an older version up to this one."""
        self._database.create(lambda connection: migrate(connection, self.name))

    def check(self, limit_s: float) -> bool:
        """Looks whether it is damaged. Returns False if `limit_s` was over before all of it was looked at."""
        return self._database.check(limit_s)

    def close(self) -> None:
        """Lets the database go."""
        self._database.close()

    def write(self, instance: str, rows: Sequence[Row], refused: Sequence[Refusals]) -> None:
        """Writes all or nothing, rows with their cancellations. A row takes the place of one of the same number, but an
        open one none that is closed; and so do refusals of the same key."""
        with self._database.write() as connection:
            if rows:
                connection.execute(self._put_request, [_request_columns(instance, row) for row in rows])
            cancelled = [_cancellation_columns(instance, row, each) for row in rows for each in row.cancellations]
            if cancelled:
                connection.execute(self._put_cancellation, cancelled)
            if refused:
                connection.execute(self._put_refusals, [_refusal_columns(instance, each) for each in refused])

    def beat(self, instance: str) -> int:
        """This gateway lives. Closes what those have left open that do not, and returns how many rows that were."""
        with self._database.write() as connection:
            now = self._now(connection)
            connection.execute(
                self._put_gateway, {"instance": instance, "started_at": now, "seen_at": now, "ended_at": None}
            )
            silent = sa.and_(gateways.c.ended_at.is_(None), gateways.c.seen_at < now - LEASE_S)
            dead = connection.execute(sa.select(gateways.c.instance).where(silent)).scalars().all()
            return self._bury(connection, dead) if dead else 0

    def end(self, instance: str) -> int:
        """This gateway ends. Closes what it has left open, and returns how many rows that were."""
        with self._database.write() as connection:
            return self._bury(connection, [instance])

    def forget(self, days: float) -> int:
        """Deletes some of what is older, and is not open. Returns how much that was; 0: nothing is left to delete."""
        with self._database.write() as connection:
            before = self._now(connection) - days * _DAY_S
            old_request = sa.and_(requests.c.arrived_at < before, requests.c.outcome != Outcome.OPEN.value)
            return (
                self._delete_some(connection, requests, old_request)
                + self._delete_some(connection, cancellations, cancellations.c.cancelled_at < before)
                + self._delete_some(connection, refusals, refusals.c.second < before)
                + self._delete_some(connection, gateways, gateways.c.ended_at < before)
            )

    def read(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        """What a query of its tables finds. LedgerError also for a schema of another version."""
        with self._database.read() as connection:
            version = version_of(connection, self.name)
            if version < SCHEMA:
                raise LedgerError(f"{self.name} has schema {version}; a gateway that starts makes {SCHEMA} of it")
            return connection.execute(query).all()

    def version(self) -> int:
        """The schema's."""
        with self._database.read() as connection:
            return version_of(connection, self.name)

    def _bury(self, connection: sa.Connection, instances: Sequence[str]) -> int:
        left = sa.and_(requests.c.instance.in_(instances), requests.c.outcome == Outcome.OPEN.value)
        closed = connection.execute(
            requests.update().where(left).values(outcome=Outcome.LOST.value, reason=GATEWAY_LOST)
        )
        ended = gateways.update().where(gateways.c.instance.in_(instances))
        connection.execute(ended.values(ended_at=self._now(connection)))
        return closed.rowcount

    def _delete_some(self, connection: sa.Connection, table: sa.Table, condition: sa.ColumnElement[bool]) -> int:
        key = sa.tuple_(*table.primary_key.columns)
        some = sa.select(*table.primary_key.columns).where(condition).limit(FORGET_ROWS)
        return connection.execute(table.delete().where(key.in_(some))).rowcount

    def _now(self, connection: sa.Connection) -> float:
        """One clock for all gateways of the database, in seconds since the epoch: that of its server, if it has one."""
        if self._database.kind == "sqlite":
            return self._clock()
        now: float = connection.execute(
            sa.select(sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp()), sa.Double))
        ).scalar_one()
        return now


def day_of(time: float) -> str:
    """The day in UTC of seconds since the epoch, as 2026-11-30."""
    return _name_day(int(time // _DAY_S))


@functools.lru_cache(maxsize=8)
def _name_day(day: int) -> str:
    return datetime.fromtimestamp(day * _DAY_S, timezone.utc).strftime("%Y-%m-%d")


def _upsert(
    insert: Callable[[sa.Table], Any],
    table: sa.Table,
    keep: Sequence[str] = (),
    unless: tuple[str, str] | None = None,
) -> Any:
    """An insert that replaces the row of the same key, but for the columns to `keep`. `unless`: a row that has this
    column and value replaces none that has another one."""
    statement = insert(table)
    keys = {column.name for column in table.primary_key.columns}
    replaced = {
        column.name: statement.excluded[column.name]
        for column in table.columns
        if column.name not in keys and column.name not in keep
    }
    where = None
    if unless is not None:
        name, value = unless
        where = sa.or_(statement.excluded[name] != value, table.c[name] == value)
    return statement.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=replaced, where=where)


def _request_columns(instance: str, row: Row) -> dict[str, Any]:
    columns = {name: getattr(row, name) for name in _ROW_FIELDS}
    columns.update({name: getattr(row.stages, name) for name in _STAGE_FIELDS})
    columns.update(instance=instance, day=day_of(row.arrived_at), outcome=row.outcome.value)
    return columns


def _cancellation_columns(instance: str, row: Row, each: Cancellation) -> dict[str, Any]:
    return {
        "instance": instance,
        "number": row.number,
        "part": 0 if each.output_index is None else each.output_index + 1,
        "request_id": row.request_id,
        "tenant": row.tenant,
        "traffic_class": row.traffic_class,
        **dataclasses.asdict(each),
        "states": ",".join(each.states),
    }


def _refusal_columns(instance: str, each: Refusals) -> dict[str, Any]:
    return {
        "instance": instance,
        **dataclasses.asdict(each.key),
        "day": day_of(each.key.second),
        "count": each.count,
        "request_id": each.request_id,
    }
