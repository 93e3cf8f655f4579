"""The writer with real databases, while these break."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import structlog

from bench.postgres_server import PostgresServer
from tercet.errors import LedgerError
from tercet.ledger.ledger import Ledger
from tercet.ledger.row import Outcome, Refusals, Row
from tercet.ledger.tables import gateways, refusals
from tercet.ledger.writer import Writer

from .fake_ledger import key, until
from .rows import row
from .test_ledger import refused, spoil, stored


def test_nobody_writes_into_a_damaged_database(tmp_path: Path) -> None:
    made = Ledger(str(tmp_path / "ledger.db"), time.time)
    made.create()
    made.write("one", [row(number) for number in range(500)], [])
    made.close()
    spoil(tmp_path / "ledger.db", 5)
    with pytest.raises(LedgerError, match=r"ledger\.database: .*ledger\.db is damaged"):
        Writer(made, tmp_path / "books", "one", 0.0, lambda _: None).start()
    assert not list(tmp_path.glob("books*"))
    made.close()


def test_rows_whose_fate_is_unknown_are_written_again(
    where: str, open_ledger: Callable[[str], Ledger], written: list[Row], make_writer: Any
) -> None:
    """In a real database: the connection breaks after the commit."""
    real = open_ledger(where)

    class Breaking:
        failures = 2

        def write(self, instance: str, rows: Sequence[Row], refused: Sequence[Refusals]) -> None:
            real.write(instance, rows, refused)
            if self.failures:
                self.failures -= 1
                raise LedgerError("the connection was lost")

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    writer = make_writer(Breaking())
    for number in range(10):
        writer.put(row(number))
        writer.refuse(key(), "r")
    until(lambda: len(written) >= 10)
    writer.stop()
    assert len(stored(real)) == 10
    assert refused(real) == {("one", "alice", "QUEUE_FULL"): 10}


def test_a_server_that_crashes_and_comes_back(
    postgres: PostgresServer, open_ledger: Callable[[str], Ledger], written: list[Row], make_writer: Any
) -> None:
    """A real one, while rows come all the time."""
    ledger = open_ledger(postgres.make_database())
    writer = make_writer(ledger)
    for number in range(200):
        writer.put(row(number))
        writer.refuse(key(number // 50), "r")
        if number == 100:
            postgres.kill()
        time.sleep(0.002)
    writer.put(row(0, Outcome.COMPLETED))
    postgres.start()
    until(lambda: len({each.number for each in written}) == 200)
    assert writer.stop() == 0
    found = stored(ledger)
    assert len(found) == 200
    assert [number for (_, number), each in found.items() if each.outcome is Outcome.COMPLETED] == [0]
    # It has ended in good order, so what was open is no more.
    assert {each.outcome for each in found.values()} == {Outcome.COMPLETED, Outcome.LOST}
    assert sum(each[-1] for each in ledger.read(sa.select(refusals.c.count))) == 200


def test_a_file_that_others_lock(
    tmp_path: Path, open_ledger: Callable[[str], Ledger], written: list[Row], make_writer: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Longer than SQLite waits for them."""
    monkeypatch.setattr("tercet.database._BUSY_S", 0.05)
    path = tmp_path / "ledger.db"
    ledger = open_ledger(str(path))
    writer = make_writer(ledger)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with structlog.testing.capture_logs() as logs:
        writer.put(row(1))
        until(lambda: bool(logs))
    assert "locked" in logs[0]["problem"]
    other.execute("COMMIT")
    other.close()
    until(lambda: written == [row(1)])
    assert stored(ledger) == {("one", 1): row(1)}


def test_a_file_that_is_deleted_is_made_anew(
    tmp_path: Path, open_ledger: Callable[[str], Ledger], written: list[Row], make_writer: Any
) -> None:
    ledger = open_ledger(str(tmp_path / "ledger.db"))
    writer = make_writer(ledger)
    writer.put(row(1))
    until(lambda: len(written) == 1)
    for file in tmp_path.iterdir():
        file.unlink()
    with structlog.testing.capture_logs() as logs:
        writer.put(row(1, Outcome.COMPLETED))
        writer.put(row(2))
        until(lambda: len(written) == 3)
        until(lambda: any(each["event"] == "ledger_found" for each in logs))
    assert [each["event"] for each in logs if "journal" not in each["event"]] == ["ledger_lost", "ledger_found"]
    assert stored(ledger) == {("one", 1): row(1, Outcome.COMPLETED), ("one", 2): row(2)}
    # Should it die now, others know that it was there.
    assert [each.instance for each in ledger.read(sa.select(gateways))] == ["one"]
