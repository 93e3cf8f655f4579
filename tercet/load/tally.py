"""Millions of durations in little memory: how many there were of each size, to within a quarter of a percent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from .figures import Spread

# Sizes of one step differ by at most half a percent; each counts as the middle of its step.
_STEP = math.log(1.005)
# Milliseconds below this are one size.
_LEAST = 1e-3


class Tally:
    """Durations in milliseconds. Mean and largest are exact, percentiles to within 0.25 %."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._total = 0.0
        self._largest = 0.0

    def add(self, milliseconds: float) -> None:
        """One more."""
        self._counts[math.floor(math.log(max(milliseconds, _LEAST)) / _STEP)] += 1
        self._total += milliseconds
        self._largest = max(self._largest, milliseconds)

    def merge(self, other: Tally) -> None:
        """All those of another one, too."""
        self._counts += other._counts
        self._total += other._total
        self._largest = max(self._largest, other._largest)

    def pairs(self) -> tuple[tuple[float, int], ...]:
        """Sizes in milliseconds and how often each came, from the smallest up."""
        return tuple((_middle(step), count) for step, count in sorted(self._counts.items()))

    def spread(self) -> Spread | None:
        """Its figures; None of nothing."""
        count = self._counts.total()
        if not count:
            return None
        pairs = self.pairs()
        # The middle of a step may lie beyond the largest in it.
        p50, p95, p99 = (min(_at(pairs, math.ceil(count * each / 100)), self._largest) for each in (50, 95, 99))
        return Spread(count, self._total / count, p50, p95, p99, self._largest)


def _middle(step: int) -> float:
    return math.exp((step + 0.5) * _STEP)


def _at(pairs: Iterable[tuple[float, int]], rank: int) -> float:
    for value, count in pairs:
        rank -= count
        if rank <= 0:
            return value
    raise AssertionError("a rank beyond the count")
