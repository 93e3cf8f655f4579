"""How far a point has come: counts that grow while it runs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .exchange import Exchange

# First tokens that the live median is of.
_LATEST = 200


@dataclass(slots=True, eq=False)
class Progress:
    """Counts of one process."""

    sent: int = 0
    finished: int = 0
    tokens: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    # Of the latest first tokens, milliseconds from when they were due.
    ttft_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_LATEST))

    @property
    def running(self) -> int:
        """Requests that are sent and not over."""
        return self.sent - self.finished

    def note_sent(self) -> None:
        self.sent += 1

    def note_piece(self, seen: Exchange, tokens: int) -> None:
        """A message with so many tokens has just come."""
        self.tokens += tokens
        if len(seen.moments) == 1:
            self.ttft_ms.append((seen.moments[0] - seen.due_s) * 1e3)

    def note_over(self, outcome: str) -> None:
        self.finished += 1
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
