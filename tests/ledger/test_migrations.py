"""Older ledgers are brought up to date, newer ones left alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tercet.errors import LedgerError
from tercet.ledger import tables
from tercet.ledger.ledger import Ledger
from tercet.ledger.migrations import SCHEMA, STEPS
from tercet.ledger.row import Outcome

from .rows import row

ByHand = Callable[..., list[tuple[Any, ...]]]


def columns(where: str) -> dict[str, dict[str, tuple[bool, bool]]]:
    """Whether each column of each table may be NULL, and whether it is part of the key."""
    engine = sa.create_engine(where if "://" in where else f"sqlite:///{where}")
    inspector = sa.inspect(engine)
    found = {}
    for table in inspector.get_table_names():
        keys = inspector.get_pk_constraint(table)["constrained_columns"]
        found[table] = {each["name"]: (each["nullable"], each["name"] in keys) for each in inspector.get_columns(table)}
    engine.dispose()
    return found


def test_the_tables_that_are_made_are_those_that_are_asked(ledger: Ledger, where: str) -> None:
    assert columns(where) == {
        table.name: {each.name: (bool(each.nullable), each.primary_key) for each in table.columns}
        for table in tables.metadata.tables.values()
    }


@pytest.mark.parametrize("version", range(1, SCHEMA))
def test_an_older_one_is_migrated_with_all_that_is_in_it(
    version: int, where: str, open_ledger: Callable[[str], Ledger], by_hand: ByHand
) -> None:
    if "://" not in where:
        Path(where).touch()
    for step in STEPS[:version]:
        for statement in step:
            by_hand(statement)
    by_hand("UPDATE ledger SET schema_version = :version", version=version)
    by_hand(
        "INSERT INTO requests (instance, number, request_id, tenant, traffic_class, model, revision, outputs,"
        " arrived_at, day, outcome, reason, prompt_tokens)"
        " VALUES ('old', 1, 'r', 't', 'c', 'm', 'v', 1, 5.5, '1970-01-01', 'open', '', 7)"
    )
    old = open_ledger(where)
    with pytest.raises(LedgerError, match=f"has schema {version}; a gateway that starts makes {SCHEMA} of it"):
        old.read(sa.select(tables.requests))
    old.create()
    assert by_hand("SELECT schema_version FROM ledger") == [(SCHEMA,)]
    assert columns(where).keys() == set(tables.metadata.tables)
    # What was there can be read, closed, and is not changed otherwise.
    assert old.end("old") == 1
    old.write("old", [row(2, Outcome.COMPLETED, largest_gap_s=0.5)], [])
    query = sa.select(tables.requests.c.request_id, tables.requests.c.prompt_tokens, tables.requests.c.largest_gap_s)
    assert sorted(tuple(each) for each in old.read(query)) == [("r", 7, None), ("request-2", 0, 0.5)]
    # Once is enough.
    old.create()
    assert by_hand("SELECT schema_version FROM ledger") == [(SCHEMA,)]


def test_a_newer_one_is_refused_by_name(ledger: Ledger, where: str, by_hand: ByHand) -> None:
    by_hand("UPDATE ledger SET schema_version = :version", version=SCHEMA + 1)
    expected = f"has schema {SCHEMA + 1}; this version of tercet knows those up to {SCHEMA}"
    with pytest.raises(LedgerError, match=expected):
        ledger.create()
    with pytest.raises(LedgerError, match=expected):
        ledger.read(sa.select(tables.requests))


@pytest.mark.parametrize("version", ["'abc'", "1.5", "-1"])
def test_a_version_that_is_none_is_refused(version: str, tmp_path: Path, open_ledger: Callable[[str], Ledger]) -> None:
    path = tmp_path / "ledger.db"
    ledger = open_ledger(str(path))
    ledger.create()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE ledger SET schema_version = {version}")
    expected = f"has schema {version}, which no version of tercet writes"
    with pytest.raises(LedgerError, match=expected):
        ledger.create()
    with pytest.raises(LedgerError, match=expected):
        ledger.read(sa.select(tables.requests))


def test_a_database_of_something_else_is_left_alone(
    where: str, open_ledger: Callable[[str], Ledger], by_hand: ByHand
) -> None:
    by_hand("CREATE TABLE others (x INTEGER)")
    with pytest.raises(LedgerError, match="is a database of something else: it has a table others"):
        open_ledger(where).create()
    assert list(columns(where)) == ["others"]


def test_a_migration_that_fails_leaves_what_was_there(
    where: str, open_ledger: Callable[[str], Ledger], by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = open_ledger(where)
    made.create()
    before = columns(where)
    broken = (*STEPS, ("ALTER TABLE requests ADD COLUMN new_one TEXT", "NO STATEMENT"))
    monkeypatch.setattr("tercet.ledger.migrations.STEPS", broken)
    monkeypatch.setattr("tercet.ledger.migrations.SCHEMA", len(broken))
    with pytest.raises(LedgerError, match="NO"):
        made.create()
    assert columns(where) == before
    assert by_hand("SELECT schema_version FROM ledger") == [(SCHEMA,)]


def test_sqlite_is_in_wal_mode(tmp_path: Path, open_ledger: Callable[[str], Ledger]) -> None:
    path = tmp_path / "ledger.db"
    open_ledger(str(path)).create()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
