"""What each of several that compete has been served, by weight. Knows no queues, classes or tenants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# A weight is at least this: nobody is divided by nothing.
LEAST_WEIGHT = 1e-3


@dataclass(slots=True, eq=False)
class Share:
    """The virtual counter of one of them: tokens that it was served, each divided by its weight at the time."""

    weight: float
    served: float = 0.0
    # Tokens of it that are charged and not yet computed.
    ahead: int = 0

    @property
    def received(self) -> float:
        """The counter without what is still ahead."""
        return self.served - self.ahead / self.weight

    def charge(self, tokens: int) -> None:
        """It was served `tokens`; fewer than none give back what was charged too much."""
        self.served += tokens / self.weight

    def come_back(self, level: float) -> None:
        """It has something to be served again: what it did not ask for meanwhile is not owed to it."""
        self.served = max(self.served, level)


def share_of(weight: float) -> Share:
    """One that has been served nothing."""
    return Share(max(weight, LEAST_WEIGHT))


def level(competing: Iterable[Share], last: Share | None) -> float:
    """Where one that comes back begins: with the one of those that compete who has received least, or where nobody does
    with the last that did."""
    return min((share.received for share in competing), default=0.0 if last is None else last.received)
