"""What gateways leave in their journals is brought into the database by those that come later, on both kinds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
import structlog

from tercet.errors import LedgerError
from tercet.ledger import adopter
from tercet.ledger.adopter import Adopted, Adopter, adopt
from tercet.ledger.cancellations import read_cancellations
from tercet.ledger.journal import Journal, find_journals
from tercet.ledger.ledger import Ledger
from tercet.ledger.record import refusals_to_line, row_to_line
from tercet.ledger.row import GATEWAY_LOST, Cancellation, Outcome, Refusals, Row

from .rows import refusals, row
from .test_ledger import refused, stored


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return tmp_path / "books"


def leave(prefix: Path, *lines: bytes, instance: str = "one") -> None:
    journal = Journal(prefix, instance)
    journal.open()
    for line in lines:
        journal.append(line)
    journal.close(remove=False)


def closed(number: int) -> Row:
    """One with a cancel, and all that a row may have."""
    cancel = Cancellation(None, "client", 1_764_500_001.0, ("DECODE",), 0.0, 0.1, 0.2, 3, 4, 0.5)
    return row(number, Outcome.CANCELLED, generated_tokens=5, ttft_s=0.25, cancellations=(cancel,))


def whole(ledger: Ledger, number: int) -> Row:
    """A row with its cancels."""
    cancels = [
        each.cancellation for each in read_cancellations(ledger, 0.0, 1e12) if each.request_id == f"request-{number}"
    ]
    return dataclasses.replace(stored(ledger)["one", number], cancellations=tuple(cancels))


def test_what_was_left_is_there_and_closed(ledger: Ledger, prefix: Path) -> None:
    ledger.beat("one")
    ledger.write("one", [row(1)], [])
    leave(prefix, row_to_line(row(1)), row_to_line(row(2)), row_to_line(row(3)), row_to_line(closed(2)),
          refusals_to_line(refusals(2)), refusals_to_line(refusals(5)))  # fmt: skip
    assert adopt(prefix, ledger) == [Adopted("one", rows=3, closed=2)]
    found = stored(ledger)
    assert whole(ledger, 2) == closed(2)
    for number in (1, 3):
        assert (found["one", number].outcome, found["one", number].reason) == (Outcome.LOST, GATEWAY_LOST)
    assert refused(ledger) == {("one", "alice", "QUEUE_FULL"): 5}
    assert find_journals(prefix) == []
    assert adopt(prefix, ledger) == []


def test_what_is_written_twice_is_there_once(ledger: Ledger, prefix: Path) -> None:
    """The database has all of it already, and later words as well."""
    lines = [row_to_line(row(1)), row_to_line(row(2)), refusals_to_line(refusals(5))]
    ledger.write("one", [closed(1), row(2)], [refusals(5)])
    for _ in range(2):
        leave(prefix, *lines)
        adopt(prefix, ledger)
    # An open row takes nobody's place.
    assert whole(ledger, 1) == closed(1)
    assert stored(ledger)["one", 2].outcome is Outcome.LOST
    assert refused(ledger) == {("one", "alice", "QUEUE_FULL"): 5}


def test_who_was_closed_for_its_silence_is_closed_by_its_own_word(ledger: Ledger, prefix: Path) -> None:
    ledger.beat("one")
    ledger.write("one", [row(1)], [])
    ledger.end("one")
    assert stored(ledger)["one", 1].outcome is Outcome.LOST
    leave(prefix, row_to_line(row(1)), row_to_line(closed(1)))
    adopt(prefix, ledger)
    assert whole(ledger, 1) == closed(1)


def test_a_torn_line_costs_itself_alone(ledger: Ledger, prefix: Path) -> None:
    torn = row_to_line(closed(2))[:-20]
    leave(prefix, row_to_line(closed(1)), torn + b"\n", b"\0\0\0\n", row_to_line(closed(3)), torn)
    assert adopt(prefix, ledger) == [Adopted("one", rows=2, closed=0, unreadable=3)]
    assert {number for _, number in stored(ledger)} == {1, 3}


def test_the_torn_end_of_one_file_takes_nothing_of_the_other(ledger: Ledger, prefix: Path) -> None:
    leave(prefix, row_to_line(closed(1)), row_to_line(closed(2))[:-20])
    prefix.with_name("books.one.1.journal").write_bytes(row_to_line(closed(3)) + row_to_line(closed(4)))
    assert adopt(prefix, ledger) == [Adopted("one", rows=3, closed=0, unreadable=1)]
    assert {number for _, number in stored(ledger)} == {1, 3, 4}


def test_nobody_adopts_his_own(ledger: Ledger, prefix: Path) -> None:
    leave(prefix, row_to_line(row(1)))
    Adopter(prefix, ledger, "one").look()
    assert find_journals(prefix) == ["one"]
    assert not stored(ledger)


def test_those_who_live_keep_theirs(ledger: Ledger, prefix: Path) -> None:
    journal = Journal(prefix, "alive")
    journal.open()
    journal.append(row_to_line(row(1)))
    leave(prefix, row_to_line(row(1)))
    assert [each.instance for each in adopt(prefix, ledger)] == ["one"]
    assert set(stored(ledger)) == {("one", 1)}
    journal.close(remove=True)


class Failing:
    """A database that fails after so many transactions."""

    def __init__(self, ledger: Ledger, after: int) -> None:
        self._ledger = ledger
        self._left = after

    def write(self, instance: str, rows: Sequence[Row], refused: Sequence[Refusals]) -> None:
        if not self._left:
            raise LedgerError("it is gone")
        self._left -= 1
        self._ledger.write(instance, rows, refused)

    def end(self, instance: str) -> int:
        return self._ledger.end(instance)


def test_what_a_database_does_not_take_stays(ledger: Ledger, prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopter, "MAX_ROWS", 10)
    leave(prefix, *(row_to_line(closed(number)) for number in range(35)))
    for after in range(3):
        with pytest.raises(LedgerError):
            adopt(prefix, Failing(ledger, after))
        assert len(stored(ledger)) == 10 * after
        assert find_journals(prefix) == ["one"]
    adopt(prefix, ledger)
    assert len(stored(ledger)) == 35
    assert find_journals(prefix) == []


def test_what_cannot_be_had_is_told_once(ledger: Ledger, prefix: Path) -> None:
    prefix.with_name("books.bad.0.journal").mkdir()
    leave(prefix, row_to_line(row(1)), b"torn\n")
    looking = Adopter(prefix, ledger)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            looking.look()
    assert [each["event"] for each in logs] == [
        "ledger_journal_unreadable", "ledger_journal_adopted", "ledger_journal_torn", "ledger_rows_closed",
    ]  # fmt: skip


def test_a_folder_that_is_gone_is_told(ledger: Ledger, tmp_path: Path) -> None:
    (found,) = adopt(tmp_path / "gone" / "books", ledger)
    assert "gone" in found.problem


def test_one_that_cannot_be_had_keeps_nobody_from_the_others(ledger: Ledger, prefix: Path) -> None:
    prefix.with_name("books.bad.0.journal").mkdir()
    leave(prefix, row_to_line(closed(1)))
    bad, good = adopt(prefix, ledger)
    assert (bad.instance, good.instance, good.rows) == ("bad", "one", 1)
    assert bad.problem
