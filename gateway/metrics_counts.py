"""What ended requests were, counted from the rows that the books close and from the refusals that they count. So what
Prometheus adds up is what the ledger adds up.

Knows no Prometheus. Called for requests; what comes of each token is counted by its stream.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from tercet import errors
from tercet.ledger.row import GATEWAY_LOST, SLO_MET, SLO_UNSERVED, STAGES, Outcome, Row
from tercet.metrics.distribution import LONG_SECONDS, SHORT_SECONDS, Distribution
from tercet.metrics.labels import TenantLabels, known

from .cancel import CancelOrigin
from .sequence_end import EndReason
from .stream import Stream

# All that a request may end with. Outputs that ended differently are of one reason, whichever they are.
SEVERAL = "several"
# As of slo_of.
SLO_RESULTS = (SLO_MET, SLO_UNSERVED, "ttft", "gap", "ttft+gap")
REASONS = frozenset(
    {
        GATEWAY_LOST,
        *errors.request_error_types(),
        *(origin.value for origin in CancelOrigin),
        *(reason.value for reason in EndReason),
    }
)


def _long() -> Distribution:
    return Distribution(LONG_SECONDS)


def _short() -> Distribution:
    return Distribution(SHORT_SECONDS)


@dataclass(slots=True)
class Tokens:
    """Of ended requests of one model and class, or of one tenant; seconds of steps, and their cost."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    delivered: int = 0
    wasted: int = 0
    gpu_s: float = 0.0
    cpu_s: float = 0.0
    cost: float = 0.0

    def add(self, row: Row) -> None:
        """A request has ended."""
        self.prompt += row.prompt_tokens
        self.cached += row.cached_tokens or 0
        self.generated += row.generated_tokens or 0
        self.delivered += row.delivered_tokens or 0
        self.wasted += row.wasted_tokens or 0
        self.gpu_s += row.gpu_s or 0.0
        self.cpu_s += row.cpu_s or 0.0
        self.cost += row.cost or 0.0


@dataclass(slots=True)
class Times:
    """Of ended requests of one class, in seconds."""

    ttft: Distribution = field(default_factory=_long)
    tpot: Distribution = field(default_factory=_short)
    gap: Distribution = field(default_factory=_short)
    largest_gap: Distribution = field(default_factory=_short)
    total: Distribution = field(default_factory=_long)
    stages: dict[str, Distribution] = field(default_factory=lambda: {stage: _long() for stage in STAGES})

    def add(self, row: Row, stream: Stream | None) -> None:
        """A request has ended."""
        for seconds, distribution in (
            (row.ttft_s, self.ttft),
            (row.tpot_s, self.tpot),
            (row.largest_gap_s, self.largest_gap),
            (row.total_s, self.total),
        ):
            if seconds is not None:
                distribution.add(seconds)
        for stage, seconds in row.stages.items():
            self.stages[stage].add(seconds)
        if stream is not None:
            self.gap.merge(stream.gaps)


class RequestCounts:
    """Of this process. `tenants` says which tenants are told apart, `classes` those that there are: what nothing has
    come of yet counts from 0, so that the first one is seen to come."""

    def __init__(self, tenants: TenantLabels, classes: Collection[str] = ()) -> None:
        self._tenants = tenants
        # By model, class, outcome and reason.
        self.requests: Counter[tuple[str, str, str, str]] = Counter()
        # By model and class; by tenant; what became of promises by class and result.
        self.tokens: defaultdict[tuple[str, str], Tokens] = defaultdict(Tokens)
        self.tenant_requests: Counter[tuple[str, str]] = Counter()
        self.tenant_tokens: defaultdict[str, Tokens] = defaultdict(Tokens)
        self.slo: Counter[tuple[str, str]] = Counter({(name, result): 0 for name in classes for result in SLO_RESULTS})
        # By class; and of cancels by origin.
        self.times: defaultdict[str, Times] = defaultdict(Times)
        self.cancels: defaultdict[str, Distribution] = defaultdict(_long)
        self.num_pauses = self.num_takeovers = 0

    def closed(self, row: Row, stream: Stream | None) -> None:
        """A request has ended. Without a stream it was never submitted."""
        self._count(row.tenant, row.model, row.traffic_class, row.outcome, row.reason)
        self.tokens[row.model, row.traffic_class].add(row)
        self.tenant_tokens[self._tenants.label(row.tenant)].add(row)
        if row.slo is not None:
            self.slo[row.traffic_class, row.slo] += 1
        self.times[row.traffic_class].add(row, stream)
        self.num_takeovers += row.takeovers or 0
        for cancel in row.cancellations:
            if cancel.done_s is not None:
                self.cancels[cancel.origin].add(cancel.done_s)
        if stream is not None:
            self.num_pauses += stream.num_pauses

    def refused(self, tenant: str, model: str, traffic_class: str, reason: str) -> None:
        """Nothing was done for a request of one of the classes that there are, or of none."""
        self._count(tenant, model, traffic_class, Outcome.REFUSED, reason)

    def _count(self, tenant: str, model: str, traffic_class: str, outcome: Outcome, reason: str) -> None:
        reason = SEVERAL if "," in reason else known(reason, REASONS)
        self.requests[model, traffic_class, outcome.value, reason] += 1
        self.tenant_requests[self._tenants.label(tenant), outcome.value] += 1
