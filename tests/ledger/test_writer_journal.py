"""What the writer's journal keeps while the database is away, and what is left in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import structlog

from tercet.errors import LedgerError
from tercet.ledger import writer as writer_module
from tercet.ledger.journal import Journal, take_left
from tercet.ledger.record import from_line
from tercet.ledger.row import Outcome, Refusals, Row

from .fake_ledger import FakeLedger, key, until
from .rows import row


def left_in(prefix: Path, instance: str = "one") -> list[Any]:
    """Rows and refusals in the journal of a writer that is no more."""
    with take_left(prefix, instance) as left:
        return [] if left is None else [from_line(line) for line in left.lines]


def test_what_could_not_be_written_is_left_to_whoever_comes_next(
    database: FakeLedger, make_writer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "LAST_S", 0.05)
    writer = make_writer(database)
    writer.put(row(0, Outcome.COMPLETED))
    until(lambda: 0 in database.rows)
    database.fail = LedgerError("it is gone")
    for number in (1, 2):
        writer.put(row(number))
        writer.refuse(key(5), "r")
    writer.put(row(2, Outcome.COMPLETED))
    assert writer.stop() == 2
    left = left_in(tmp_path / "books")
    assert {row(1), row(2, Outcome.COMPLETED), Refusals(key(5), 2, "r")} <= set(left)
    database.fail = None
    with structlog.testing.capture_logs() as logs:
        make_writer(database, instance="two")
        until(lambda: any(each["event"] == "ledger_journal_adopted" for each in logs))
    assert database.rows == {
        0: row(0, Outcome.COMPLETED), 1: row(1), 2: row(2, Outcome.COMPLETED),
    }  # fmt: skip
    assert database.refusals == {key(5): 2}
    assert list(tmp_path.glob("books.one.*")) == []


def test_what_was_written_is_left_to_nobody(database: FakeLedger, make_writer: Any, tmp_path: Path) -> None:
    writer = make_writer(database)
    writer.put(row(1))
    assert len(list(tmp_path.glob("books.one.*.journal"))) == 2
    writer.stop()
    assert list(tmp_path.iterdir()) == []


def test_refusals_of_seconds_that_are_over_are_in_the_journal(
    database: FakeLedger, make_writer: Any, tmp_path: Path
) -> None:
    """While the database hangs, and the process is killed then."""
    writer = make_writer(database)
    until(lambda: database.beats > 0)
    database.gate.clear()
    for second in (1, 1, 2, 3):
        writer.refuse(key(second), "r")
    kept = b"".join(each.read_bytes() for each in tmp_path.glob("books.one.*.journal"))
    assert [from_line(line) for line in kept.splitlines()] == [Refusals(key(1), 2, "r"), Refusals(key(2), 1, "r")]
    database.gate.set()
    until(lambda: database.refusals == {key(1): 2, key(2): 1, key(3): 1})


def test_a_journal_without_room_costs_nothing_while_the_database_is_there(
    database: FakeLedger, written: list[Row], make_writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_writer(database)
    full = OSError(28, "No space left on device")

    def refuse(_self: Journal, _line: bytes) -> None:
        raise full

    with structlog.testing.capture_logs() as logs, monkeypatch.context() as patch:
        patch.setattr(Journal, "append", refuse)
        for number in range(3):
            writer.put(row(number))
        until(lambda: len(written) == 3)
    writer.put(row(3))
    # Once each.
    assert [(each["event"], each["log_level"]) for each in logs] == [("ledger_journal_lost", "error")]
    until(lambda: len(written) == 4)
    assert writer.stop() == 0


@pytest.mark.parametrize("has_room", [True, False])
def test_what_neither_took_is_told_as_lost(
    has_room: bool, database: FakeLedger, make_writer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "LAST_S", 0.05)
    writer = make_writer(database)
    database.fail = LedgerError("it is gone")

    def refuse(_self: Journal, _line: bytes) -> None:
        raise OSError(28, "No space left on device")

    with structlog.testing.capture_logs() as logs, monkeypatch.context() as patch:
        patch.setattr(Journal, "append", refuse)
        writer.put(row(1))
        if not has_room:
            writer.stop()
    if has_room:
        # The end is another chance.
        writer.stop()
        assert left_in(tmp_path / "books") == [row(1)]
    lost = [each["rows"] for each in logs if each["event"] == "ledger_rows_lost"]
    assert lost == ([] if has_room else [1])
    database.fail = None


def test_a_journal_that_is_deleted_is_made_anew(
    database: FakeLedger, make_writer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "BEAT_S", 0.01)
    monkeypatch.setattr(writer_module, "LAST_S", 0.05)
    writer = make_writer(database)
    first = tmp_path / "books.one.0.journal"
    for path in (first, first.with_name("books.one.1.journal")):
        with structlog.testing.capture_logs() as logs:
            path.unlink()
            until(lambda: any(each["event"] == "ledger_journal_made_anew" for each in logs))
        assert path.exists()
    database.fail = LedgerError("it is gone")
    writer.put(row(1))
    writer.stop()
    assert left_in(tmp_path / "books") == [row(1)]
    database.fail = None


def test_it_does_not_start_without_a_journal(database: FakeLedger, make_writer: Any, tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"books.one.{number}.journal").mkdir()
    with pytest.raises(LedgerError, match="journal"):
        make_writer(database)
    assert database.beats == 0
