"""The writer's thread: what is put is written once, whatever the database does meanwhile."""

from __future__ import annotations

import time
from typing import Any

import pytest
import structlog

from tercet.errors import LedgerError
from tercet.ledger import refusal_tally
from tercet.ledger import writer as writer_module
from tercet.ledger.row import Outcome, RefusalKey, Row

from .fake_ledger import FakeLedger, key, until
from .rows import row


def test_rows_are_written_and_told(database: FakeLedger, written: list[Row], make_writer: Any) -> None:
    writer = make_writer(database)
    writer.put(row(1))
    until(lambda: written == [row(1)])
    writer.put(row(1, Outcome.COMPLETED))
    writer.put(row(2))
    until(lambda: len(written) == 3)
    assert database.rows == {1: row(1, Outcome.COMPLETED), 2: row(2)}


def test_at_the_start_it_is_looked_whether_the_database_is_whole(database: FakeLedger, make_writer: Any) -> None:
    with structlog.testing.capture_logs() as logs:
        make_writer(database)
    assert (database.checks, logs) == ([writer_module.CHECK_S], [])
    database.whole = False
    with structlog.testing.capture_logs() as logs:
        make_writer(database, instance="two")
    assert [each["event"] for each in logs] == ["ledger_not_looked_through"]


def test_what_comes_while_the_database_is_busy_is_one_batch(
    database: FakeLedger, written: list[Row], make_writer: Any
) -> None:
    writer = make_writer(database)
    database.gate.clear()
    writer.put(row(0))
    until(lambda: database.held_up)
    for number in range(1, 51):
        writer.put(row(number))
        writer.put(row(number, Outcome.COMPLETED))
    database.gate.set()
    until(lambda: len(written) >= 51)
    assert database.batches[-1] == 50
    assert all(database.rows[number].outcome is Outcome.COMPLETED for number in range(1, 51))


def test_a_large_batch_is_divided(
    database: FakeLedger, written: list[Row], make_writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_ROWS", 10)
    writer = make_writer(database)
    database.gate.clear()
    for number in range(35):
        writer.put(row(number))
    database.gate.set()
    until(lambda: len(written) == 35)
    assert max(database.batches) == 10
    assert len(database.rows) == 35


def test_a_database_that_fails_gets_all_rows_once_it_is_back(
    database: FakeLedger, written: list[Row], make_writer: Any
) -> None:
    writer = make_writer(database)
    database.fail = LedgerError("the disk is full")
    with structlog.testing.capture_logs() as logs:
        for number in range(5):
            writer.put(row(number))
            writer.refuse(key(), "r")
        until(lambda: bool(logs))
        time.sleep(0.05)
        for number in range(5):
            writer.put(row(number, Outcome.COMPLETED))
        assert written == []
        database.fail = None
        until(lambda: len(written) >= 5)
        until(lambda: len(logs) > 1)
    # Once each, however often it was tried.
    assert [(each["event"], each["log_level"]) for each in logs] == [("ledger_lost", "error"), ("ledger_found", "info")]
    assert "the disk is full" in logs[0]["problem"]
    assert {each.outcome for each in database.rows.values()} == {Outcome.COMPLETED}
    assert database.refusals == {key(): 5}
    # A file that is gone would have been made anew.
    assert database.created == 2


def test_an_error_that_nobody_expects_is_told_with_its_trace(database: FakeLedger, make_writer: Any) -> None:
    writer = make_writer(database)
    database.fail = RuntimeError("a bug")
    with structlog.testing.capture_logs() as logs:
        writer.put(row(1))
        until(lambda: bool(logs))
    assert isinstance(logs[0]["exc_info"], RuntimeError)
    database.fail = None
    until(lambda: 1 in database.rows)


def test_refusals_are_counted_by_kind_and_second(database: FakeLedger, make_writer: Any) -> None:
    writer = make_writer(database)
    expected: dict[RefusalKey, int] = {}
    for second in range(3):
        for reason in ("QUEUE_FULL", "TENANT_QUOTA"):
            for _ in range(second + 2):
                writer.refuse(key(second, reason), "r")
                time.sleep(0.005)
            expected[key(second, reason)] = second + 2
    until(lambda: database.refusals == expected)
    assert sum(database.batches) == 0
    # Those of seconds that are over take no memory.
    until(lambda: len(writer._refusals) <= 2)


def test_so_many_kinds_of_refusals_are_counted_and_no_more(
    database: FakeLedger, make_writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusal_tally, "MAX_KEYS", 3)
    with structlog.testing.capture_logs() as logs:
        writer = make_writer(database)
        database.gate.clear()
        for number in range(10):
            writer.refuse(key(number), "r")
        database.gate.set()
        until(lambda: len(database.refusals) == 3)
        until(lambda: sum(each["refusals"] for each in logs) == 7)
    assert {each["event"] for each in logs} == {"ledger_refusals_uncounted"}
    # There is room again for later ones.
    writer.refuse(key(11), "r")
    until(lambda: key(11) in database.refusals)


def test_the_end_waits_for_what_was_put(database: FakeLedger, make_writer: Any) -> None:
    writer = make_writer(database)
    for number in range(100):
        writer.put(row(number))
        writer.refuse(key(), "r")
    assert writer.stop() == 0
    assert len(database.rows) == 100
    assert database.refusals == {key(): 100}
    assert (database.ends, database.closed) == (1, True)


@pytest.mark.parametrize("hangs", [False, True])
def test_the_end_does_not_wait_for_ever(
    hangs: bool, database: FakeLedger, make_writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "LAST_S", 0.1)
    writer = make_writer(database)
    if hangs:
        database.gate.clear()
    else:
        database.fail = LedgerError("it is gone")
    with structlog.testing.capture_logs() as logs:
        writer.put(row(1))
        writer.put(row(2))
        left = writer.stop()
    # Also those that a transaction which hangs has in its hands.
    assert left == 2
    assert [each["rows"] for each in logs if each["event"] == "ledger_left_to_journal"] == [2]
    database.gate.set()


def test_it_says_that_it_lives(database: FakeLedger, make_writer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "BEAT_S", 0.01)
    make_writer(database)
    until(lambda: database.beats > 3)


def test_old_rows_are_deleted_piece_by_piece_and_then_seldom(database: FakeLedger, make_writer: Any) -> None:
    database.old = 25
    make_writer(database, retention_days=7.0)
    until(lambda: len(database.forgets) == 4)
    time.sleep(0.1)
    # Three pieces, and one that finds nothing.
    assert database.forgets == [7.0] * 4


def test_without_retention_nothing_is_deleted(database: FakeLedger, make_writer: Any) -> None:
    database.old = 25
    writer = make_writer(database)
    writer.put(row(1))
    until(lambda: 1 in database.rows)
    time.sleep(0.05)
    assert database.forgets == []


def test_it_does_not_start_without_a_database(database: FakeLedger, make_writer: Any) -> None:
    database.fail = LedgerError("there is none")
    with pytest.raises(LedgerError):
        make_writer(database)
    database.fail = None
