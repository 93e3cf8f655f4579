"""Cancels in the ledger: written with their requests, found again, and added up."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest
import sqlalchemy as sa

from tercet.cancel_times import CancelTimes, times_by_origin
from tercet.ledger import ledger as ledger_module
from tercet.ledger import tables
from tercet.ledger.cancellations import ORIGIN_GATEWAY_LOST, read_cancellations
from tercet.ledger.ledger import LEASE_S, Ledger
from tercet.ledger.row import Cancellation, Cancelled, Outcome, Row

from .rows import row

FULL = Cancellation(
    None, "client", 1.75e9, ("DECODE", "FINISHED"), release_s=0.0, freed_s=0.25, done_s=0.5, blocks_freed=9,
    wasted_tokens=3, wasted_gpu_s=0.125,
)  # fmt: skip
EVER = (0.0, 1e12)


def cancelled(number: int, *cancellations: Cancellation, **changes: Any) -> Row:
    return row(number, Outcome.CANCELLED, cancellations=cancellations, **changes)


def test_what_is_written_is_found(ledger: Ledger) -> None:
    stop = Cancellation(1, "stop_string", 1.75e9 - 1, ("DECODE",), 0.0, 0.01, 0.02, 4, None, 0.0)
    unknown = Cancellation(None, "operator", 1.75e9 - 2)
    rows = [cancelled(1, FULL, stop), cancelled(2, unknown, tenant="bob", traffic_class="rag")]
    ledger.write("one", rows, [])
    # Nobody knows whether that came through: once more.
    ledger.write("one", rows, [])
    assert read_cancellations(ledger, *EVER) == [
        Cancelled("request-1", "alice", "interactive", FULL),
        Cancelled("request-1", "alice", "interactive", stop),
        Cancelled("request-2", "bob", "rag", unknown),
    ]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"origin": "operator"}, [2]),
        ({"tenant": "alice"}, [3, 1]),
        ({"tenant": "alice", "origin": "operator"}, []),
        ({"limit": 2}, [3, 2]),
        ({"since": 11.0, "until": 12.0}, [2]),
    ],
)
def test_what_is_asked_for(ledger: Ledger, asked: dict[str, Any], expected: list[int]) -> None:
    origins, tenants = ("client", "operator", "client"), ("alice", "bob", "alice")
    rows = [
        cancelled(number, dataclasses.replace(FULL, origin=origin, cancelled_at=9.5 + number), tenant=tenant)
        for number, origin, tenant in zip((1, 2, 3), origins, tenants, strict=True)
    ]
    ledger.write("one", rows, [])
    found = read_cancellations(ledger, **{"since": 0.0, "until": 100.0, **asked})
    assert [int(each.request_id.removeprefix("request-")) for each in found] == expected


def test_what_a_lost_gateway_had_is_among_them(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.beat("lost")
    ledger.write("lost", [row(1), row(2, Outcome.COMPLETED)], [])
    before = time.time()
    monkeypatch.setattr(ledger_module, "LEASE_S", -LEASE_S)
    assert ledger.beat("other") == 1
    (found,) = read_cancellations(ledger, *EVER)
    assert found.request_id == "request-1"
    assert found.cancellation == Cancellation(None, ORIGIN_GATEWAY_LOST, found.cancellation.cancelled_at)
    assert abs(found.cancellation.cancelled_at - before) < 60
    assert read_cancellations(ledger, *EVER, origin=ORIGIN_GATEWAY_LOST, tenant="alice") == [found]
    assert not read_cancellations(ledger, *EVER, origin=ORIGIN_GATEWAY_LOST, tenant="bob")
    assert not read_cancellations(ledger, *EVER, origin="client")
    # It was only slow, and knows better.
    ledger.write("lost", [row(1, Outcome.COMPLETED)], [])
    assert not read_cancellations(ledger, *EVER)


def test_they_are_forgotten_with_their_requests(ledger: Ledger) -> None:
    new = dataclasses.replace(FULL, cancelled_at=time.time())
    ledger.write("one", [cancelled(1, FULL), cancelled(2, new)], [])
    while ledger.forget(1.0):
        pass
    assert [each.number for each in ledger.read(sa.select(tables.cancellations))] == [2]


def test_times_are_told_by_origin() -> None:
    def of(origin: str, freed_s: float | None, done_s: float | None) -> Cancelled:
        cancellation = Cancellation(None, origin, 1.0, freed_s=freed_s, done_s=done_s)
        return Cancelled("r", "t", "c", cancellation)

    found = [of("client", index / 100, 1.0) for index in range(100, 0, -1)] + [of("deadline", None, None)]
    assert times_by_origin(found) == [
        CancelTimes("client", 100, 0.5, 0.99, 1.0, 1.0, 1.0, 1.0),
        CancelTimes("deadline", 1, None, None, None, None, None, None),
    ]
    assert times_by_origin([]) == []
