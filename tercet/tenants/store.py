"""The store: tenants, their plans and their keys, and every change of them.

A change counts up the revision in its own transaction, so that a reader that knows the revision knows whether anything
has changed. Knows no gateway.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tercet.database import Database
from tercet.errors import StoreError, TenantError

from .api_key import ApiKey, new_key
from .directory import Directory, Key, Tenant
from .plan import NAME, PlanError, TenantPlan
from .tables import PLAN_COLUMNS, SCHEMA, keys, metadata, settings, tenants

_YEAR_10000 = 253_402_300_800.0
OPERATOR = "operator"
TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """What can be told of a key. Times are seconds since the epoch, None where that was not; no key of a tenant was
    created before an older one, even if the clock said so."""

    id: str
    role: str
    created_at: float
    expires_at: float | None
    revoked_at: float | None

    def active(self, now: float) -> bool:
        """Whether it opens anything."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class TenantEntry:
    """A tenant with all its keys, the oldest first."""

    name: str
    created_at: float
    plan: TenantPlan
    keys: tuple[KeyEntry, ...]


class Store:
    """Tenants in a database. `clock` gives seconds since the epoch. Every method may raise StoreError."""

    def __init__(self, where: str, clock: Callable[[], float]) -> None:
        # Without a WAL: one that stayed behind would undo that an older state of the file is put back.
        self._database = Database(where, StoreError, "`tercet tenant add NAME`", wal=False)
        self._clock = clock

    @property
    def name(self) -> str:
        """Where it is, without a password."""
        return self._database.name

    def create(self) -> None:
        """Makes it, unless it is there. A file with nothing in it was another store, or will be: it stays as it is."""
        if self._database.is_empty():
            raise StoreError(
                f"{self.name} is an empty file: remove {self.name}-journal, if that is there, and put back the store "
                "that was there, or remove the file to begin another"
            )
        self._database.create(self._fill)

    def close(self) -> None:
        """Lets the database go."""
        self._database.close()

    def check(self) -> None:
        """Looks whether it is whole, which `read` does not notice while nobody changes anything."""
        self._database.check()
        with self._database.read() as connection:
            self._settings(connection)

    def read(self, known: int | None = None) -> Directory | None:
        """All there is; None if that is still what it was at the revision `known`."""
        with self._database.read() as connection:
            row = self._settings(connection)
            if row.revision == known:
                return None
            found_tenants = self._rows(connection, tenants)
            found_keys = self._rows(connection, keys, keys.c.revoked_at.is_(None))
        return Directory(
            revision=row.revision,
            server_key=row.server_key,
            tenants={each.name: Tenant(each.name, each.uid, self._plan(each)) for each in found_tenants},
            keys={
                each.id: Key(each.id, each.tenant, each.digest, each.role == OPERATOR, each.expires_at)
                for each in found_keys
            },
        )

    def entries(self) -> tuple[TenantEntry, ...]:
        """All tenants by name."""
        with self._database.read() as connection:
            self._settings(connection)
            found = sorted(self._rows(connection, tenants), key=lambda each: each.name)
            of_tenants = sorted(self._rows(connection, keys), key=lambda each: (each.created_at, each.id))
        keys_of: dict[str, list[KeyEntry]] = {}
        for key in of_tenants:
            entry = KeyEntry(key.id, key.role, key.created_at, key.expires_at, key.revoked_at)
            keys_of.setdefault(key.tenant, []).append(entry)
        return tuple(
            TenantEntry(
                each.name,
                each.created_at,
                self._plan(each),
                tuple(keys_of.get(each.name, ())),
            )
            for each in found
        )

    def add(self, name: str, plan: TenantPlan, *, operator: bool) -> ApiKey:
        """A new tenant with its first key. Raises TenantError if there is one of that name, or the name cannot be."""
        if not NAME.fullmatch(name):
            raise TenantError(
                f"{name[:80]!r} cannot be a tenant's name: letters, digits, '.', '_' and '-', at most 64, a letter or "
                "digit first"
            )
        with self._change() as connection:
            if connection.execute(sa.select(tenants.c.name).where(tenants.c.name == name)).first() is not None:
                raise TenantError(f"there is a tenant {name} already; `tercet tenant set {name}` changes it")
            row = {"name": name, "uid": secrets.token_hex(16), "created_at": self._now()}
            connection.execute(tenants.insert().values(**row, **_columns(plan)))
            return self._insert_key(connection, name, OPERATOR if operator else TENANT)

    def change(self, name: str, **fields: Any) -> TenantPlan:
        """Replaces fields of a tenant's plan; returns the whole. Raises TenantError for no such tenant, PlanError for
        values that make no sense together."""
        with self._change() as connection:
            plan = dataclasses.replace(self._plan(self._tenant(connection, name)), **fields)
            connection.execute(tenants.update().where(tenants.c.name == name).values(**_columns(plan)))
        return plan

    def rotate(self, name: str, *, grace_s: float, operator: bool | None) -> ApiKey:
        """A new key; those there are end in `grace_s` seconds. `operator` None: the role of the newest key there was.
        Raises TenantError for no such tenant and for a grace that is none."""
        if not (math.isfinite(grace_s) and grace_s >= 0):
            # SQLite keeps what is not a number as NULL: a key that never expires.
            raise TenantError(f"the grace must be a finite number of seconds from 0 on, is {grace_s}")
        with self._change() as connection:
            self._tenant(connection, name)
            newest = sa.select(keys.c.role).where(keys.c.tenant == name).order_by(keys.c.created_at.desc())
            role = connection.execute(newest).scalars().first()
            ends_at = self._now() + grace_s
            later = sa.or_(keys.c.expires_at.is_(None), keys.c.expires_at > ends_at)
            ending = (keys.c.tenant == name, keys.c.revoked_at.is_(None), later)
            connection.execute(keys.update().where(*ending).values(expires_at=ends_at))
            if operator is not None:
                role = OPERATOR if operator else TENANT
            return self._insert_key(connection, name, role or TENANT)

    def revoke(self, name: str, key_id: str | None) -> tuple[str, ...]:
        """Ends a tenant's keys, or the one of them, for good; returns the ids of those that were not. Raises
        TenantError for no such tenant or key."""
        with self._change() as connection:
            self._tenant(connection, name)
            of_tenant = sa.select(keys.c.id, keys.c.revoked_at).where(keys.c.tenant == name)
            found = {row.id: row.revoked_at for row in connection.execute(of_tenant)}
            if key_id is not None:
                if key_id not in found:
                    raise TenantError(f"tenant {name} has no key {key_id}; `tercet tenant list --json` shows them")
                found = {key_id: found[key_id]}
            ended = tuple(key for key, revoked_at in found.items() if revoked_at is None)
            connection.execute(keys.update().where(keys.c.id.in_(ended)).values(revoked_at=self._now()))
        return ended

    def remove(self, name: str) -> None:
        """Takes a tenant out, its keys with it. Raises TenantError for no such tenant."""
        with self._change() as connection:
            self._tenant(connection, name)
            connection.execute(tenants.delete().where(tenants.c.name == name))

    def _fill(self, connection: sa.Connection) -> None:
        there = sa.inspect(connection).get_table_names()
        if settings.name in there:
            self._settings(connection)
            return
        if there:
            raise StoreError(f"{self.name} is a database of something else: it has a table {there[0]}")
        metadata.create_all(connection)
        row = {"id": 1, "schema_version": SCHEMA, "revision": self._revision_after(0)}
        connection.execute(settings.insert().values(**row, server_key=secrets.token_bytes(32)))

    @contextmanager
    def _change(self) -> Iterator[sa.Connection]:
        """A transaction that counts up the revision. Two never overlap: the row is locked first."""
        with self._database.write() as connection:
            revision = self._settings(connection, lock=True).revision
            connection.execute(settings.update().values(revision=self._revision_after(revision)))
            yield connection

    def _settings(self, connection: sa.Connection, *, lock: bool = False) -> Any:
        if lock:
            connection.execute(sa.select(settings.c.id).with_for_update())
        rows = self._rows(connection, settings)
        if not rows:
            raise StoreError(f"{self.name} has no settings: it is damaged")
        row = rows[0]
        if row.schema_version > SCHEMA:
            raise StoreError(
                f"{self.name} has schema {row.schema_version}; this version of tercet knows those up to {SCHEMA}: use "
                "the version that wrote it, or a newer one"
            )
        return row

    def _tenant(self, connection: sa.Connection, name: str) -> Any:
        rows = self._rows(connection, tenants, tenants.c.name == name)
        if not rows:
            raise TenantError(f"there is no tenant {name!r}; `tercet tenant list` shows those there are")
        return rows[0]

    def _rows(self, connection: sa.Connection, table: sa.Table, *which: sa.ColumnElement[bool]) -> Sequence[Any]:
        """Rows of a table. SQLite keeps a value of any type in any column: raises StoreError for a wrong one."""
        found = connection.execute(sa.select(table).where(*which)).all()
        kinds = [(name, _kinds(column)) for name, column in table.columns.items()]
        for row in found:
            for (name, kind), value in zip(kinds, row, strict=True):
                if not isinstance(value, kind):
                    raise StoreError(
                        f"{self.name}: {name} of {table.name} {row[0]} cannot be {type(value).__name__}: it is changed "
                        "by `tercet tenant` alone"
                    )
        return found

    def _plan(self, row: Any) -> TenantPlan:
        values = {name: getattr(row, name) for name in PLAN_COLUMNS}
        classes = values.pop("classes")
        try:
            return TenantPlan(classes=tuple(classes.split(",")) if classes else (), **values)
        except PlanError as error:
            raise StoreError(f"{self.name}: the plan of tenant {row.name} cannot be: {error}") from error

    def _insert_key(self, connection: sa.Connection, tenant: str, role: str) -> ApiKey:
        key = new_key()
        last = connection.execute(sa.select(sa.func.max(keys.c.created_at)).where(keys.c.tenant == tenant)).scalar()
        # A tenant's keys have an order, whatever becomes of the clock: the role of the newest is the one that is kept.
        created_at = self._now() if last is None else max(self._now(), math.nextafter(last, math.inf))
        row = {"id": key.id, "tenant": tenant, "digest": key.digest, "role": role, "created_at": created_at}
        connection.execute(keys.insert().values(**row))
        return key

    def _revision_after(self, revision: int) -> int:
        # By the clock, so that a store made anew, or one that goes on from a copy, is not taken for an older state.
        return max(revision + 1, int(self._now() * 1e6))

    def _now(self) -> float:
        now = self._clock()
        if not now < _YEAR_10000:
            raise StoreError(f"the clock of this host is wrong: it is {now:g} s since 1970")
        return now


def _kinds(column: sa.Column[Any]) -> tuple[type, ...]:
    """Types of what may stand in a column."""
    kind = column.type.python_type
    # A whole number is a number; no other is a whole one.
    return (kind, *([int] if kind is float else []), *([type(None)] if column.nullable else []))


def _columns(plan: TenantPlan) -> dict[str, Any]:
    values = {name: getattr(plan, name) for name in PLAN_COLUMNS}
    return {**values, "classes": ",".join(plan.classes)}
