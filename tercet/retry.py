"""When whoever was refused is told to ask again: bounds for all who forecast that."""

from __future__ import annotations

from dataclasses import dataclass

# Nobody shall ask again at once, nor give up for what is a guess after all.
SHORTEST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.05, 60.0
# Where nothing says when: long enough not to hammer, short enough to find a gap.
UNKNOWN_RETRY_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class Spread:
    """Those who were refused for the same are told to come one behind the other, so that not all come in the same
    moment. Times are seconds of one clock."""

    # When the one who was refused last was told to come again.
    expected_at: float = 0.0

    def retry_after(self, soonest_s: float, each_s: float, over_s: float, now: float) -> float:
        """Seconds until the next one may come: no sooner than in `soonest_s`, `each_s` behind the one before. Over
        `over_s` seconds; beyond, it starts over, as there are gaps of those who do not come."""
        soonest = now + soonest_s
        after = self.expected_at + each_s
        is_ahead = now < self.expected_at and soonest <= after <= soonest + over_s
        self.expected_at = after if is_ahead else soonest
        return bounded_retry(self.expected_at - now)


def bounded_retry(seconds: float) -> float:
    """The nearest to `seconds` that may be told."""
    return min(max(seconds, SHORTEST_RETRY_SECONDS), LONGEST_RETRY_SECONDS)
