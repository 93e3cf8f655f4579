"""What is said of many measurements: percentiles, gaps, and shares of a window of time. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of all do not exceed. Raises ValueError if there is none."""
    if not values:
        raise ValueError("nothing was measured")
    ranked = sorted(values)
    return ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)]


def gaps(moments: Sequence[float]) -> list[float]:
    """Seconds between each moment and the next."""
    return [later - earlier for earlier, later in itertools.pairwise(moments)]


def overlap(spans: Iterable[Sequence[float]], begin: float, end: float) -> float:
    """Seconds that spans of time, each (from, to), have within a window."""
    return sum(max(0.0, min(to, end) - max(since, begin)) for since, to in spans)


def spread(values: Sequence[float]) -> str:
    """The range of several runs, for a table."""
    return f"{min(values):.4g} .. {max(values):.4g}"
