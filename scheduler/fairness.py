"""What each of several that compete has been served, by weight. Knows no queues, classes or tenants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Share:
    """The virtual counter of one of them: tokens that it was served, each divided by its weight at the time, > 0."""

    weight: float
    served: float = 0.0
    # Tokens of it that are charged and not yet computed, and what was charged for them.
    ahead: int = 0
    charged_ahead: float = 0.0
    # Where the others were when it came back last.
    level: float = 0.0

    @property
    def received(self) -> float:
        """The counter without what is still ahead."""
        return self.served - self.charged_ahead

    def charge(self, tokens: int, weight: float) -> None:
        """It was served `tokens` at that weight; fewer than none give back what was charged too much."""
        self.served += tokens / weight

    def put_ahead(self, tokens: int, weight: float) -> None:
        """So many more of the tokens charged at that weight are ahead; fewer than none are so no more."""
        self.ahead += tokens
        # From nothing on, so that what rounding leaves does not add up.
        self.charged_ahead = self.charged_ahead + tokens / weight if self.ahead else 0.0

    def come_back(self, level: float, owed: float) -> None:
        """It has something to be served again, where the others are at `level`."""
        self.served = self.begin(level, owed)
        self.level = max(self.received, level)

    def begin(self, level: float, owed: float) -> float:
        """The counter if it comes back now: of what it did not ask for it is owed at most `owed` tokens."""
        return max(self.served, level - owed / self.weight)


def level(competing: Iterable[Share], last: Share | None) -> float:
    """Where those that compete are: at the one who has received least, or where nobody does at the last that did. What
    is owed to them is as good as received, or it would be owed again to those who come after them."""
    return min(map(_settled, competing), default=0.0 if last is None else _settled(last))


def _settled(share: Share) -> float:
    return max(share.received, share.level)
