"""Rows as tests need them."""

from __future__ import annotations

from typing import Any

from tercet.ledger.row import Outcome, RefusalKey, Refusals, Row


def row(number: int, outcome: Outcome = Outcome.OPEN, **changes: Any) -> Row:
    """A row of which only what is named matters."""
    values: dict[str, Any] = {
        "request_id": f"request-{number}", "tenant": "alice", "traffic_class": "interactive", "model": "small",
        "revision": "r1", "outputs": 1, "arrived_at": 1_764_500_000.0 + number, "reason": "",
    }  # fmt: skip
    return Row(number, outcome=outcome, **{**values, **changes})


def refusals(count: int, second: int = 1_764_500_000, **changes: str) -> Refusals:
    """So many, for the reason QUEUE_FULL."""
    values = {"tenant": "alice", "traffic_class": "rag", "model": "small", "reason": "QUEUE_FULL"}
    return Refusals(RefusalKey(second, **{**values, **changes}), count, "first")
