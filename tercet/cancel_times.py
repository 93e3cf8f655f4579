"""How long cancels took, by origin."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tercet.ledger.row import Cancellation, Cancelled


@dataclass(frozen=True, slots=True)
class CancelTimes:
    """Durations of the cancels of one origin, in seconds, None if none is known: until the blocks were free, on the
    scheduler's clock, and until the gateway knew, on its own."""

    origin: str
    count: int
    freed_p50_s: float | None
    freed_p99_s: float | None
    freed_max_s: float | None
    done_p50_s: float | None
    done_p99_s: float | None
    done_max_s: float | None


def times_by_origin(cancelled: Iterable[Cancelled]) -> list[CancelTimes]:
    """By origin, in their order."""
    by_origin: defaultdict[str, list[Cancellation]] = defaultdict(list)
    for each in cancelled:
        by_origin[each.cancellation.origin].append(each.cancellation)
    return [
        CancelTimes(
            origin,
            len(found),
            *_quantiles([each.freed_s for each in found if each.freed_s is not None]),
            *_quantiles([each.done_s for each in found if each.done_s is not None]),
        )
        for origin, found in sorted(by_origin.items())
    ]


def _quantiles(seconds: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Half of them, 99 of a hundred, and all are at most this long."""
    if not seconds:
        return None, None, None
    ordered = sorted(seconds)
    half, most = (ordered[math.ceil(part * len(ordered)) - 1] for part in (0.5, 0.99))
    return half, most, ordered[-1]
