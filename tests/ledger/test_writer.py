"""The writer's thread: what is put is written once, whatever the database does meanwhile."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import structlog

from bench.postgres_server import PostgresServer
from tercet.errors import LedgerError
from tercet.ledger import refusal_tally
from tercet.ledger import writer as writer_module
from tercet.ledger.journal import Journal, take_left
from tercet.ledger.ledger import Ledger
from tercet.ledger.record import from_line
from tercet.ledger.row import Outcome, RefusalKey, Refusals, Row
from tercet.ledger.tables import gateways, refusals
from tercet.ledger.writer import Writer

from .rows import row
from .test_ledger import refused, spoil, stored


class FakeLedger:
    """Keeps rows in memory. `fail` is raised by whatever writes; `gate`, while it is cleared, holds it up."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.refusals: dict[RefusalKey, int] = {}
        self.batches: list[int] = []
        self.created = self.beats = self.ends = 0
        self.checks: list[float] = []
        # Whether a check gets through all of it.
        self.whole = True
        self.old = 0
        self.forgets: list[float] = []
        self.fail: Exception | None = None
        # Raised after the rows are there: nobody knows whether they are.
        self.fail_late: Exception | None = None
        self.held_up = False
        self.gate = threading.Event()
        self.gate.set()
        self.closed = False

    def create(self) -> None:
        self._meet()
        self.created += 1

    def write(self, instance: str, rows: Sequence[Row], refused: Sequence[Refusals]) -> None:
        self._meet()
        self.batches.append(len(rows))
        self.rows.update({each.number: each for each in rows})
        self.refusals.update({each.key: each.count for each in refused})
        if self.fail_late is not None:
            error, self.fail_late = self.fail_late, None
            raise error

    def check(self, limit_s: float) -> bool:
        self.checks.append(limit_s)
        return self.whole

    def beat(self, instance: str) -> int:
        self._meet()
        self.beats += 1
        return 0

    def end(self, instance: str) -> int:
        self._meet()
        self.ends += 1
        return 0

    def forget(self, days: float) -> int:
        self.forgets.append(days)
        deleted = min(self.old, 10)
        self.old -= deleted
        return deleted

    def close(self) -> None:
        self.closed = True

    def _meet(self) -> None:
        self.held_up = not self.gate.is_set()
        self.gate.wait(60)
        self.held_up = False
        if self.fail is not None:
            raise self.fail


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


def until(check: Callable[[], bool]) -> None:
    """Waits until a check holds: the thread says nothing."""
    while not check():
        time.sleep(0.002)


def key(second: int = 5, reason: str = "QUEUE_FULL") -> RefusalKey:
    return RefusalKey(second, "alice", "rag", "small", reason)


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
