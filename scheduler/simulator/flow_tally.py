"""What became of the requests of one flow, and which of them got what their class promises."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tercet.errors import RequestError

from ..traffic_class import TrafficClass
from .spread import Spread


@dataclass(slots=True, eq=False)
class FlowTally:
    """What became of the requests of one flow, whose class promises `traffic_class.ttft` and `gap`.

    A request is qualified if it was completed and its class's targets were met.
    """

    traffic_class: TrafficClass
    offered: int = 0
    accepted: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    # Of those that were refused: how many were told when to come again.
    retries: int = 0
    qualified: int = 0
    # Between the arrivals of the first quarter of all requests and of the last one: when the load was what it is.
    qualified_under_load: int = 0
    # Prompts and outputs of these.
    tokens_under_load: int = 0
    first_token: Spread = field(default_factory=Spread)

    @property
    def over(self) -> int:
        """Requests that have had their terminal message."""
        return self.completed + self.cancelled + self.failed.total() + self.refused.total()

    def complete(self, tokens: int, first_token_s: float, gap_s: float, *, under_load: bool) -> None:
        """A request got all its tokens, the first after `first_token_s`, with `gap_s` between two on average. With its
        prompt they are `tokens`."""
        self.completed += 1
        ttft, gap = self.traffic_class.ttft, self.traffic_class.gap
        if (ttft is None or first_token_s <= ttft.seconds) and (gap is None or gap_s <= gap.seconds):
            self.qualified += 1
            if under_load:
                self.qualified_under_load += 1
                self.tokens_under_load += tokens

    def refuse(self, failure: RequestError) -> None:
        """A request was refused."""
        self.refused[failure.reason] += 1
        self.retries += failure.retry_after_s is not None

    def report(self, seconds: float) -> dict[str, Any]:
        """All of it as plain data, after `seconds` under load."""
        return {
            "traffic_class": self.traffic_class.name,
            "offered": self.offered,
            "accepted": self.accepted,
            "completed": self.completed,
            "cancelled": self.cancelled,
            "failed": dict(sorted(self.failed.items())),
            "refused": dict(sorted(self.refused.items())),
            "refused_with_retry": self.retries,
            "qualified": self.qualified,
            "qualified_per_second": round(self.qualified_under_load / seconds, 4) if seconds else 0.0,
            "qualified_tokens_per_second": round(self.tokens_under_load / seconds, 1) if seconds else 0.0,
            "ttft_ms": self.first_token.report(1e3),
        }
