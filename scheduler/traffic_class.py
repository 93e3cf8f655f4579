"""Traffic classes: who goes first, and who gives way. Knows no tenants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

# What one level of priority is worth, in seconds of waiting. A finite worth: nothing waits for ever.
PRIORITY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class TrafficClass:
    """One kind of traffic. Of two running sequences that of the higher `rank` gives way first."""

    name: str
    rank: int
    # Seconds by which its requests let those of a class without patience go ahead.
    patience_s: float

    def urgency(self, priority: int, arrived_at: float, arrival: int) -> tuple[float, int]:
        """The place in the order of service, smaller first. A claim grows with waiting, so that nothing starves."""
        return arrived_at + self.patience_s + priority * PRIORITY_SECONDS, arrival


DEFAULT_CLASS = TrafficClass("interactive", 0, 0.0)
CLASSES: Mapping[str, TrafficClass] = MappingProxyType(
    {each.name: each for each in (DEFAULT_CLASS, TrafficClass("rag", 1, 2.0), TrafficClass("batch", 2, 60.0))}
)
