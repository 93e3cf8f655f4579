"""How numbers spread: percentiles in constant memory."""

from __future__ import annotations

from math import frexp

# Of each power of two: percentiles are at most 1/128 too high.
_BINS_PER_DOUBLING = 128


class Spread:
    """A histogram of numbers >= 0 with bins that grow with them; count, mean and largest are exact."""

    __slots__ = ("_bins", "count", "largest", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.largest = 0.0
        self._bins: dict[int, int] = {}

    def add(self, number: float, times: int = 1) -> None:
        """Counts a number. What is below 0 counts as 0."""
        if number > self.largest:
            self.largest = number
        self.count += times
        self.total += number * times
        if number <= 0.0:
            key = -1_000_000
        else:
            mantissa, exponent = frexp(number)
            key = exponent * _BINS_PER_DOUBLING + int((mantissa - 0.5) * 2 * _BINS_PER_DOUBLING)
        self._bins[key] = self._bins.get(key, 0) + times

    @property
    def mean(self) -> float:
        """0 if nothing was added."""
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """What `percent` of the numbers do not exceed, up to the width of a bin; 0 if there are none."""
        rank = self.count * percent / 100
        seen = 0
        for key in sorted(self._bins):
            seen += self._bins[key]
            if seen >= rank:
                return min(self.largest, _upper_edge(key))
        return self.largest

    def report(self, scale: float) -> dict[str, float]:
        """Mean, percentiles and largest times `scale`, rounded."""
        numbers = {"mean": self.mean, **{f"p{percent}": self.percentile(percent) for percent in (50, 95, 99)}}
        return {name: round(number * scale, 4) for name, number in {**numbers, "max": self.largest}.items()}


def _upper_edge(key: int) -> float:
    if key == -1_000_000:
        return 0.0
    exponent, index = divmod(key, _BINS_PER_DOUBLING)
    return float((0.5 + (index + 1) / (2 * _BINS_PER_DOUBLING)) * 2.0**exponent)
