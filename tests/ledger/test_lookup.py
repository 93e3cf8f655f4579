"""Single requests and refusals are found by their ids, whole or as they begin, with all that is known of them."""

from __future__ import annotations

import dataclasses

import pytest

from tercet.ledger.ledger import Ledger
from tercet.ledger.lookup import find_refusals, find_rows
from tercet.ledger.row import Cancellation, Outcome, StageTimes

from .rows import refusals, row

STAGES = StageTimes(0.25, 0.5, None, 1.0)
CANCELS = (
    Cancellation(None, "client", 1_764_500_000.5, ("DECODE", "QUEUED"), 0.25, 0.5, 0.75, 3, 4, 0.125),
    Cancellation(1, "stop_string", 1_764_500_000.25),
)


def test_what_was_written_is_read_back(ledger: Ledger) -> None:
    full = row(1, Outcome.CANCELLED, stages=STAGES, cancellations=CANCELS, cpu_s=0.5, takeovers=1)
    ledger.write("one", [full, row(2)], [])
    ledger.write("two", [row(1, request_id="other", cancellations=CANCELS[1:])], [])
    assert find_rows(ledger, "request-1") == [full]
    assert find_rows(ledger, "request-2") == [row(2)]
    # Numbers are each gateway's own.
    assert [each.cancellations for each in find_rows(ledger, "other")] == [CANCELS[1:]]


@pytest.mark.parametrize(
    ("prefix", "tenant", "expected"),
    [
        ("ab", None, ["ab"]),
        ("a", None, ["aB", "ab", "abc"]),
        ("abc", None, ["abc"]),
        ("aB", None, ["aB"]),
        ("a", "bob", ["abc"]),
        ("", None, ["%", "aB", "ab", "abc", "ü"]),
        ("%", None, ["%"]),
        ("ü", None, ["ü"]),
        ("_", None, []),
    ],
)
def test_beginnings(prefix: str, tenant: str | None, expected: list[str], ledger: Ledger) -> None:
    names = {"ab": "alice", "abc": "bob", "aB": "alice", "%": "alice", "ü": "alice"}
    rows = [row(number, request_id=name, tenant=whose) for number, (name, whose) in enumerate(names.items())]
    ledger.write("one", rows, [])
    assert sorted(each.request_id for each in find_rows(ledger, prefix, tenant)) == expected


def test_the_newest_come_first_and_no_more_than_asked_for(ledger: Ledger) -> None:
    ledger.write("one", [row(number, request_id="same", arrived_at=float(number)) for number in range(5)], [])
    assert [each.number for each in find_rows(ledger, "sa", limit=3)] == [4, 3, 2]


def test_refusals_by_the_first_of_them(ledger: Ledger) -> None:
    kept = refusals(17)
    older = dataclasses.replace(refusals(3, second=5, tenant="bob"), request_id="firm")
    ledger.write("one", [], [kept, older])
    assert find_refusals(ledger, "fi") == [kept, older]
    assert find_refusals(ledger, "first") == [kept]
    assert find_refusals(ledger, "fi", "bob") == [older]
    assert find_refusals(ledger, "x") == []
