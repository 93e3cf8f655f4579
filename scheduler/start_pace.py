"""How fast a queue moves: the time from one start to the next, as measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from .mean import Mean

# While nothing is known: long enough not to hammer, short enough to find a gap.
UNKNOWN_SECONDS = 1.0
# Nobody shall ask again at once, nor give up for what is a guess after all.
SHORTEST_SECONDS, LONGEST_SECONDS = 0.05, 60.0


@dataclass(slots=True, eq=False)
class StartPace:
    """Of the sequences of one class in one pool."""

    # From one start to the next, in seconds.
    between: Mean = field(default_factory=Mean)
    # When the last one started, if somebody was still waiting then.
    started_at: float | None = None

    def note(self, count: int, waiting: bool, now: float) -> None:
        """That many started; `waiting`: others wait still, so that the time to the next is not the lack of them."""
        if self.started_at is not None:
            for _ in range(count):
                self.between.add((now - self.started_at) / count)
        self.started_at = now if waiting else None

    def seconds_for(self, count: int, now: float) -> float:
        """How long it takes until so many more have started."""
        if not self.between.count:
            return UNKNOWN_SECONDS
        # A queue that stands still says more than how it moved before.
        since = 0.0 if self.started_at is None else now - self.started_at
        return min(max(max(self.between.value, since) * count, SHORTEST_SECONDS), LONGEST_SECONDS)
