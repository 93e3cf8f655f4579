"""How forecasts of one kind turned out, and what that says of the next one.

Knows no requests; times are seconds on one clock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from statistics import median
from typing import NamedTuple

# What is believed before anything is known: actual over forecast.
PRIOR = (0.7, 0.85, 1.0, 1.15, 1.4)
# Outcomes that count. Older ones than so many seconds do only while there are few others: what a forecast that is too
# high refuses can never correct it, so what is believed is not believed for ever.
MAX_RATIOS = 256
MEMORY_SECONDS = 30.0
FEW_RATIOS = 8
# Outcomes that come sooner after another are not looked at: they have waited for the same places and err alike, and
# would only drive out the older ones, which show how much forecasts vary.
SPACING_SECONDS = MEMORY_SECONDS / MAX_RATIOS
# Outcomes of which the error is told.
MAX_ERRORS = 256
# A forecast is never taken for shorter than this.
LEAST_SECONDS = 1e-6


class Ratios:
    """Actual over forecast, of late."""

    __slots__ = ("_ordered", "_recent")
    # (when it was learned, ratio), the oldest first; the same and the prior in order.
    _recent: deque[tuple[float, float]]
    _ordered: list[float]

    def __init__(self) -> None:
        self._recent = deque()
        self._ordered = list(PRIOR)

    def add(self, ratio: float, now: float) -> None:
        """A forecast came true, `ratio` times as late as it said."""
        if self._recent and now < self._recent[-1][0] + SPACING_SECONDS:
            return
        self._recent.append((now, ratio))
        insort(self._ordered, ratio)
        if len(self._recent) > MAX_RATIOS:
            self._forget_oldest()

    def fade(self, now: float) -> None:
        """Forgets what is too old."""
        while len(self._recent) > FEW_RATIOS and self._recent[0][0] < now - MEMORY_SECONDS:
            self._forget_oldest()

    def quantile(self, share: float) -> float:
        """What that share of ratios does not exceed."""
        place = share * (len(self._ordered) - 1)
        low = int(place)
        high = min(low + 1, len(self._ordered) - 1)
        return self._ordered[low] + (place - low) * (self._ordered[high] - self._ordered[low])

    def share_within(self, ratio: float) -> float:
        """The share of ratios that do not exceed this one."""
        return bisect_right(self._ordered, ratio) / len(self._ordered)

    def _forget_oldest(self) -> None:
        _, ratio = self._recent.popleft()
        del self._ordered[bisect_left(self._ordered, ratio)]


class ForecastError(NamedTuple):
    """Of the forecasts that came true of late, as parts of the actual time."""

    forecasts: int
    # Half of all were off by less; by how much they were too high (or, below 0, too low), the median again.
    median: float
    bias: float


class ForecastErrors:
    """How far forecasts were off, of late."""

    __slots__ = ("_relative",)
    _relative: deque[float]

    def __init__(self) -> None:
        self._relative = deque()

    def add(self, forecast_s: float, actual_s: float) -> None:
        """One came true."""
        self._relative.append(forecast_s / max(actual_s, LEAST_SECONDS) - 1.0)
        if len(self._relative) > MAX_ERRORS:
            self._relative.popleft()

    def view(self) -> ForecastError | None:
        """None while none has come true."""
        if not self._relative:
            return None
        return ForecastError(len(self._relative), median(map(abs, self._relative)), median(self._relative))
