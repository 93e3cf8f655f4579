"""When whoever was refused is told to ask again: bounds for all who forecast that."""

from __future__ import annotations

# Nobody shall ask again at once, nor give up for what is a guess after all.
SHORTEST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.05, 60.0
# Where nothing says when: long enough not to hammer, short enough to find a gap.
UNKNOWN_RETRY_SECONDS = 1.0


def bounded_retry(seconds: float) -> float:
    """The nearest to `seconds` that may be told."""
    return min(max(seconds, SHORTEST_RETRY_SECONDS), LONGEST_RETRY_SECONDS)
