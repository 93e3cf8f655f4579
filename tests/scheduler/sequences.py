"""Sequences for tests that need no mesh."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

from scheduler.sequence import Request, Sequence
from scheduler.traffic_class import DEFAULT_CLASS


def sequence_of(
    request: Request, arrival: int, token_ids: SequenceOf[int], max_length: int, **changes: Any
) -> Sequence:
    """A sequence as the core makes it, number `arrival`."""
    submission = request.submission
    values: dict[str, Any] = {
        "sequence_id": arrival,
        "request": request,
        "arrival": arrival,
        "token_ids": list(token_ids),
        "max_length": max_length,
        "sampling": submission.sampling,
        "claim": DEFAULT_CLASS.claim(request.arrived_at, arrival),
    }
    return Sequence(**{**values, **changes})
