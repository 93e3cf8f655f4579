"""How many rows wait to be written, and for how long: what Prometheus is told of a ledger that does not come behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.books import Books
from tercet.errors import LedgerError
from tercet.ledger.row import Outcome, Row
from tercet.sections import LedgerSettings
from tests.ledger.fake_ledger import FakeLedger

from .guarded_gateway import until


def _row(number: int, outcome: Outcome = Outcome.COMPLETED) -> Row:
    return Row(number, f"id-{number}", "", "", "model", "revision", 1, 0.0, outcome, "stop")


async def test_rows_wait_until_the_database_has_them(tmp_path: Path) -> None:
    ledger = FakeLedger()
    books = Books((ledger, tmp_path / "journal"), LedgerSettings(), "gateway-1", ())
    await books.start()
    ledger.fail = LedgerError("is locked")
    books.open(_row(1, Outcome.OPEN))
    assert (books.num_unwritten, books.oldest_unwritten_s) == (0, 0.0)
    books.close(_row(1))
    books.close(_row(2))
    assert books.num_unwritten == 2
    first = books.oldest_unwritten_s
    await until(lambda: books.lost)
    assert books.num_unwritten == 2
    assert books.oldest_unwritten_s > first
    ledger.fail = None
    await until(lambda: books.num_unwritten == 0)
    assert books.oldest_unwritten_s == 0.0
    # What was counted is counted once, however often it was tried to write.
    assert sum(books.counts.requests.values()) == 2
    await books.stop()


@pytest.mark.parametrize("closed", [0, 3])
async def test_without_a_ledger_none_waits(closed: int) -> None:
    books = Books(None, LedgerSettings(), "gateway-1", ())
    await books.start()
    for number in range(closed):
        books.close(_row(number))
    assert books.num_unwritten == 0
    assert sum(books.counts.requests.values()) == closed
    await books.stop()
