"""What is said of many measurements: percentiles, gaps, spreads. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of all do not exceed. Raises ValueError if there is none."""
    if not values:
        raise ValueError("nothing was measured")
    ranked = sorted(values)
    return ranked[_rank(len(ranked), percent)]


def _rank(count: int, percent: float) -> int:
    return max(0, math.ceil(count * percent / 100) - 1)


def gaps(moments: Sequence[float]) -> list[float]:
    """Seconds between each moment and the next."""
    return [later - earlier for earlier, later in itertools.pairwise(moments)]


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution by its figures, in the unit of what was measured. Percentiles are measured values."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float


def spread(values: Iterable[float]) -> Spread | None:
    """None of nothing."""
    ranked = sorted(values)
    if not ranked:
        return None
    p50, p95, p99 = (ranked[_rank(len(ranked), percent)] for percent in (50, 95, 99))
    return Spread(len(ranked), math.fsum(ranked) / len(ranked), p50, p95, p99, ranked[-1])
