"""How fast a queue moves: the time from one start to the next, as measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from tercet.mean import Mean
from tercet.retry import UNKNOWN_RETRY_SECONDS, Spread, bounded_retry

# Those who were refused are told to come one behind the other, over so many seconds: who does not come leaves a gap.
SPREAD_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class StartPace:
    """Of the sequences of one class in one pool."""

    # From one start to the next, in seconds.
    between: Mean = field(default_factory=Mean)
    # When the last one started, if somebody was still waiting then.
    started_at: float | None = None
    # When somebody began to wait where nobody did, if none has started since.
    waits_since: float | None = None
    # What those who were refused are told.
    told: Spread = field(default_factory=Spread)

    def note(self, count: int, waiting: bool, now: float) -> None:
        """That many started; `waiting`: others wait still, so that the time to the next is not the lack of them."""
        if self.started_at is not None:
            for _ in range(count):
                self.between.add((now - self.started_at) / count)
        self.started_at = now if waiting else None
        self.waits_since = None

    def note_first(self, now: float) -> None:
        """Somebody waits where nobody did: those before, if any were left, have gone without a start."""
        self.started_at, self.waits_since = None, now

    def seconds_for(self, count: int, now: float) -> float:
        """How long it takes until so many more have started."""
        still_since = self.waits_since if self.started_at is None else self.started_at
        # A queue that stands still says more than how it moved before.
        each = max(self.between.value, 0.0 if still_since is None else now - still_since)
        shortest = 0.0 if self.between.count else UNKNOWN_RETRY_SECONDS
        return bounded_retry(max(each * count, shortest))

    def retry_after(self, soonest_s: float, now: float) -> float:
        """When one who is refused may come again, no sooner than in `soonest_s`: as many in a second as start, so that
        not all who were refused for the same come in the same moment."""
        each_s = self.between.value if self.between.count else UNKNOWN_RETRY_SECONDS
        return self.told.retry_after(soonest_s, each_s, SPREAD_SECONDS, now)
