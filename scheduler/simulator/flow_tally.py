"""What became of the requests of one flow, and which of them got what their class promises."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ..events import Submission
from ..traffic_class import TrafficClass
from .spread import Spread


@dataclass(slots=True, eq=False)
class Ask:
    """A request on its way."""

    submission: Submission
    flow: FlowTally
    arrived_at: float
    # Outputs that have not ended.
    left: int
    sequence_ids: tuple[int, ...] = ()
    queue_s: float = 0.0
    first_token_s: float | None = None
    # The longest mean time between two tokens of an output that has ended.
    gap_s: float = 0.0
    # Why an output failed.
    failure: str = ""


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
    # Until the last request of all had arrived, that is, under load; and after.
    qualified: int = 0
    qualified_late: int = 0
    first_token: Spread = field(default_factory=Spread)

    @property
    def over(self) -> int:
        """Requests that have had their terminal message."""
        return self.completed + self.cancelled + self.failed.total() + self.refused.total()

    def meets(self, ask: Ask) -> bool:
        """Whether a completed request got what its class promises."""
        ttft, gap = self.traffic_class.ttft, self.traffic_class.gap
        in_time = ttft is None or (ask.first_token_s is not None and ask.first_token_s <= ttft.seconds)
        return in_time and (gap is None or ask.gap_s <= gap.seconds)
