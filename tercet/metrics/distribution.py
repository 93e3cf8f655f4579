"""How large things were, counted by fixed bounds: what a histogram of Prometheus is made of."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from operator import add

# Of waits and whole requests, in seconds.
LONG_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0,
    120.0, 300.0, 600.0,
)  # fmt: skip
# Of steps and from one token to the next, in seconds.
SHORT_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2,
    0.3, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
# Of plans, in steps.
STEPS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)


class Distribution:
    """Counts of what was not larger than each of `bounds` and larger than the one before, and then of all that was
    larger than the last. For one thread; another one may `copy`, and may find the last one counted and not yet in the
    sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """One more. Called for tokens."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def merge(self, other: Distribution) -> None:
        """Adds what another one of the same bounds has counted."""
        assert self.bounds == other.bounds
        self.counts = list(map(add, self.counts, other.counts))
        self.total += other.total

    def copy(self) -> Distribution:
        """The same, which does not go on counting."""
        held = Distribution(self.bounds)
        held.counts, held.total = list(self.counts), self.total
        return held

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """How many were not larger than each bound; at the end, all."""
        return list(accumulate(self.counts))
