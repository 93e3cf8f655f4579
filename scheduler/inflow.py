"""How fast something arrives, as measured. Knows not what."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

# Arrivals fade: those of about so many seconds count, at first those of at least so many.
INFLOW_SECONDS = 5.0
LEAST_SECONDS = 0.5


@dataclass(slots=True, eq=False)
class Inflow:
    """What has arrived since `begun_at`, older ones fading, as it was `at` some second."""

    begun_at: float
    amount: float = 0.0
    at: float = 0.0

    def add(self, amount: float, now: float) -> None:
        """So much arrives."""
        self.amount = self._faded(now) + amount
        self.at = now

    def per_second(self, now: float) -> float:
        """How much arrives in a second."""
        seconds = max(LEAST_SECONDS, now - self.begun_at)
        return self._faded(now) / (INFLOW_SECONDS * (1.0 - exp(-seconds / INFLOW_SECONDS)))

    def _faded(self, now: float) -> float:
        return self.amount * exp((self.at - now) / INFLOW_SECONDS)
