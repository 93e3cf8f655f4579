"""Traffic classes: what each promises, who goes first, and who gives way. Knows no tenants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tercet.class_settings import DEFAULT_CLASSES, ClassSettings

# What one level of priority is worth, in seconds of waiting. A finite worth: nothing waits for ever.
PRIORITY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    """What a class promises its requests: `percentile` percent of them wait no longer than `seconds`. Of one request it
    is a promise that is kept or broken."""

    seconds: float
    percentile: float = 95.0


@dataclass(frozen=True, slots=True)
class TrafficClass:
    """One kind of traffic. Of two running sequences that of the higher `rank` gives way first."""

    name: str
    rank: int
    # Where nothing is promised: for how many seconds its requests let those of other classes go ahead.
    patience_s: float
    # Until the first token, and from one token to the next; None: no promise, and nothing is refused for it.
    ttft: Target | None = None
    gap: Target | None = None
    # Its share of the work where no promise is at stake.
    weight: float = 1.0
    # Of what waits in one pool; 0: as the pool. Longest wait in seconds before QUEUE_EXPIRED; 0: for ever.
    max_queued_requests: int = 0
    max_queued_tokens: int = 0
    max_queue_s: float = 0.0
    # Most prefill tokens of this class in a step with decodes; 0: no limit but that of all classes.
    max_prefill_tokens: int = 0
    # Whether those of a lower rank may take its place.
    preemptible: bool = True
    # Most steps of a plan in which it takes part, and most of its sequences on one worker; 0: no limit.
    max_steps: int = 0
    max_running: int = 0

    def claim(self, arrived_at: float, arrival: int) -> tuple[float, int]:
        """What a request claims by its class and arrival alone, smaller first: the moment stays while others come, so
        that nothing starves."""
        return arrived_at + self.claim_s, arrival

    @property
    def claim_s(self) -> float:
        """Seconds from arrival to the moment that its requests claim: when their first token is due."""
        return self.patience_s if self.ttft is None else self.ttft.seconds


def class_of(name: str, settings: ClassSettings) -> TrafficClass:
    """The class of that name as an operator wants it."""
    return TrafficClass(
        name=name,
        rank=settings.rank,
        patience_s=settings.patience_seconds,
        ttft=Target(settings.ttft_ms / 1e3, settings.ttft_percentile) if settings.ttft_ms else None,
        gap=Target(settings.gap_ms / 1e3, settings.gap_percentile) if settings.gap_ms else None,
        weight=settings.weight,
        max_queued_requests=settings.max_queued_requests,
        max_queued_tokens=settings.max_queued_tokens,
        max_queue_s=settings.max_queue_seconds,
        max_prefill_tokens=settings.max_prefill_tokens,
        preemptible=settings.preemptible,
        max_steps=settings.max_steps,
        max_running=settings.max_running,
    )


# Those of a mesh whose operator changed nothing.
CLASSES: Mapping[str, TrafficClass] = MappingProxyType(
    {name: class_of(name, settings) for name, settings in DEFAULT_CLASSES.items()}
)
DEFAULT_CLASS = CLASSES["interactive"]
