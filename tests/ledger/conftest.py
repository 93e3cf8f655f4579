"""Ledgers on both kinds of databases, a SQLite file and a PostgreSQL server that the tests start, and their writers."""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from bench.postgres_server import PostgresServer, find_tool
from tercet.ledger import writer as writer_module
from tercet.ledger.ledger import Ledger
from tercet.ledger.row import Row
from tercet.ledger.writer import Writer

from .fake_ledger import FakeLedger


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server for all tests that need one."""
    missing = [name for name in ("initdb", "postgres") if find_tool(name) is None]
    if missing:
        pytest.skip(f"needs PostgreSQL, on Debian the package postgresql: there is no {', '.join(missing)}")
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("needs PostgreSQL's driver: pip install 'psycopg[binary]'")
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty ledger is to be made, once for each kind of database."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.make_database()


@pytest.fixture
def open_ledger() -> Iterator[Callable[[str], Ledger]]:
    """Opens ledgers, and closes them behind the test."""
    with contextlib.ExitStack() as opened:

        def make(where: str) -> Ledger:
            ledger = Ledger(where, time.time)
            opened.callback(ledger.close)
            return ledger

        yield make


@pytest.fixture
def ledger(where: str, open_ledger: Callable[[str], Ledger]) -> Ledger:
    """One that has been made."""
    made = open_ledger(where)
    made.create()
    return made


@pytest.fixture
def by_hand(where: str) -> Iterator[Callable[..., list[tuple[object, ...]]]]:
    """Runs a statement of SQL on the database, past the ledger."""
    engine = sa.create_engine(where if "://" in where else f"sqlite:///{where}")

    def run(statement: str, **values: object) -> list[tuple[object, ...]]:
        with engine.begin() as connection:
            result = connection.execute(sa.text(statement), values)
            return [tuple(row) for row in result] if result.returns_rows else []

    yield run
    engine.dispose()


@pytest.fixture
def database() -> FakeLedger:
    return FakeLedger()


@pytest.fixture
def written() -> list[Row]:
    return []


@pytest.fixture
def make_writer(written: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Writer]]:
    """Starts writers, and stops them behind the test."""
    monkeypatch.setattr(writer_module, "RETRY_S", 0.01)
    monkeypatch.setattr(writer_module, "TELL_S", 0.02)
    made: list[Writer] = []

    def make(ledger: Any, retention_days: float = 0.0, instance: str = "one", **options: Any) -> Writer:
        writer = Writer(ledger, tmp_path / "books", instance, retention_days, written.extend, **options)
        writer.start()
        made.append(writer)
        return writer

    yield make
    for each in made:
        each.stop()
