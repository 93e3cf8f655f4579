"""What was asked for, refused, served, and kept of promises, counted by class and tenant.

Nothing is decided by it, so no plan log keeps it. Called for requests, never for tokens.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from tercet import errors
from tercet.metrics.distribution import LONG_SECONDS, Distribution

from .cancel_trail import CancelTrail
from .events import CancelReason, EndReason
from .histogram import Histogram
from .sequence import Request

# What is recent: so many spans of time, of which the last is not over.
SPAN_SECONDS = 5.0
RECENT_SPANS = 12

# Outcomes and reasons of ends, as in the log. A matched stop string reaches the scheduler as a cancel, and so does a
# deadline that the gateway saw first.
_SERVED = frozenset({EndReason.STOP.name, EndReason.LENGTH.name, CancelReason.STOP_STRING.name})
_UNWANTED = frozenset(
    reason.name
    for reason in (
        CancelReason.CLIENT,
        CancelReason.OPERATOR,
        CancelReason.SLOW_CONSUMER,
        CancelReason.LINK_LOST,
        CancelReason.ORPHAN,
    )
)
_FAILED_AS = {CancelReason.DEADLINE.name: errors.DeadlineError.reason}


@dataclass(slots=True)
class Kept:
    """How often one kind of promise was kept, and how often not."""

    kept: int = 0
    broken: int = 0

    def note(self, kept: bool) -> None:
        if kept:
            self.kept += 1
        else:
            self.broken += 1

    def merge(self, other: Kept) -> None:
        self.kept += other.kept
        self.broken += other.broken


@dataclass(slots=True)
class Promises:
    """Of accepted requests whose class promises something: the time to the first token, the mean time from one token
    to the next; and of all but those that were cancelled, whether they were served with all that was promised."""

    ttft: Kept = field(default_factory=Kept)
    gap: Kept = field(default_factory=Kept)
    request: Kept = field(default_factory=Kept)

    def merge(self, other: Promises) -> None:
        self.ttft.merge(other.ttft)
        self.gap.merge(other.gap)
        self.request.merge(other.request)


@dataclass(slots=True)
class Counts:
    """Requests and tokens since the start."""

    accepted: int = 0
    # Ended as they should; ended because nobody wanted them any more.
    served: int = 0
    cancelled: int = 0
    # By reason of the error: refused at admission, and failed after it.
    refused: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    promises: Promises = field(default_factory=Promises)
    # Of requests that have got their first token; `cached`: those of them that the prefix cache had.
    prompt_tokens: int = 0
    cached_tokens: int = 0
    # Of requests that have ended; `wasted`: after the cancel.
    generated_tokens: int = 0
    wasted_tokens: int = 0
    preemptions: int = 0

    def merge(self, other: Counts) -> None:
        """Adds what another one has counted."""
        self.accepted += other.accepted
        self.served += other.served
        self.cancelled += other.cancelled
        for mine, theirs in ((self.refused, other.refused), (self.failed, other.failed)):
            for reason, count in theirs.items():
                mine[reason] = mine.get(reason, 0) + count
        self.promises.merge(other.promises)
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.generated_tokens += other.generated_tokens
        self.wasted_tokens += other.wasted_tokens
        self.preemptions += other.preemptions


@dataclass(slots=True)
class Service:
    """How requests of one class were served over some time."""

    promises: Promises = field(default_factory=Promises)
    # From arrival to the first token, and to the start of the prefill, of those that have got their first token.
    ttft: Histogram = field(default_factory=Histogram)
    queue: Histogram = field(default_factory=Histogram)

    def merge(self, other: Service) -> None:
        self.promises.merge(other.promises)
        self.ttft.merge(other.ttft)
        self.queue.merge(other.queue)


@dataclass(slots=True)
class ClassTraffic:
    """One class: since the start, and by span of time lately, the newest last."""

    counts: Counts = field(default_factory=Counts)
    # As in Service, of all.
    ttft_s: Distribution = field(default_factory=lambda: Distribution(LONG_SECONDS))
    queue_s: Distribution = field(default_factory=lambda: Distribution(LONG_SECONDS))
    spans: deque[tuple[int, Service]] = field(default_factory=lambda: deque(maxlen=RECENT_SPANS))

    def span(self, now: float) -> Service:
        """What is counted at this moment."""
        number = int(now // SPAN_SECONDS)
        if not self.spans or self.spans[-1][0] != number:
            self.spans.append((number, Service()))
        return self.spans[-1][1]

    def recent(self, now: float) -> Service:
        """The last RECENT_SPANS together."""
        recent = Service()
        first = int(now // SPAN_SECONDS) - RECENT_SPANS + 1
        for number, service in self.spans:
            if number >= first:
                recent.merge(service)
        return recent


@dataclass(slots=True, eq=False)
class Traffic:
    """All counts. There are never more than classes times tenants: those of tenants that are gone are one, None, and so
    are those of callers that no gateway knows."""

    classes: defaultdict[str, ClassTraffic] = field(default_factory=lambda: defaultdict(ClassTraffic))
    # By tenant, then by class. The class of a request that was refused before it had one is empty.
    tenants: defaultdict[str | None, defaultdict[str, Counts]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(Counts))
    )
    # From the arrival of each cancel until its blocks were free, by what it was for.
    cancels: defaultdict[CancelReason, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    cancel_s: dict[CancelReason, Distribution] = field(default_factory=dict)

    def cancelled(self, trail: CancelTrail) -> None:
        """A cancel has taken effect."""
        self.cancels[trail.reason].add(trail.freed_s)
        self.cancel_s.setdefault(trail.reason, Distribution(LONG_SECONDS)).add(trail.freed_s)

    def accepted(self, request: Request) -> None:
        for counts in self._counts(request.tenant.tenant, request.traffic_class.name):
            counts.accepted += 1

    def refused(self, tenant: str | None, traffic_class: str, reason: str, count: int = 1) -> None:
        """`tenant` is None, and the class empty, if there is none of that name: anybody can make up names."""
        for counts in self._counts(tenant, traffic_class):
            counts.refused[reason] = counts.refused.get(reason, 0) + count

    def first_token(self, request: Request, now: float) -> None:
        """A request got its first token."""
        leader, target = request.sequences[0], request.traffic_class.ttft
        waited = now - request.arrived_at
        counted = self.classes[request.traffic_class.name]
        counted.ttft_s.add(waited)
        counted.queue_s.add(leader.queue_seconds)
        span = counted.span(now)
        span.ttft.add(waited)
        span.queue.add(leader.queue_seconds)
        for counts in self._counts_of(request):
            counts.prompt_tokens += leader.prompt_length
            counts.cached_tokens += leader.cached_tokens
        if target is not None:
            for promises in self._promises_of(request, now):
                promises.ttft.note(waited <= target.seconds)

    def ended(self, request: Request, outcome: str, reason: str, now: float) -> None:
        """The last sequence of a request ended; `outcome` and `reason` as in the log."""
        label = reason or outcome
        served, unwanted = label in _SERVED, label in _UNWANTED
        ttft, gap = _ttft_kept(request, now), _gap_kept(request, now)
        for counts in self._counts_of(request):
            counts.generated_tokens += sum(sequence.generated for sequence in request.sequences)
            counts.wasted_tokens += sum(sequence.wasted for sequence in request.sequences)
            counts.preemptions += sum(sequence.preemptions for sequence in request.sequences)
            if served:
                counts.served += 1
            elif unwanted:
                counts.cancelled += 1
            else:
                failure = _FAILED_AS.get(label, label)
                counts.failed[failure] = counts.failed.get(failure, 0) + 1
        for promises in self._promises_of(request, now):
            if ttft is False and request.first_token_at is None:
                promises.ttft.note(False)
            if gap is not None:
                promises.gap.note(gap)
            if not unwanted:
                promises.request.note(served and ttft is not False and gap is not False)

    def keep(self, tenants: Collection[str]) -> None:
        """These are all tenants that there are."""
        for tenant in list(self.tenants):
            if tenant is not None and tenant not in tenants:
                for traffic_class, counts in self.tenants.pop(tenant).items():
                    self.tenants[None][traffic_class].merge(counts)

    def _counts(self, tenant: str | None, traffic_class: str) -> Iterator[Counts]:
        """All that count a request of that tenant and class."""
        yield self.classes[traffic_class].counts
        yield self.tenants[tenant][traffic_class]

    def _counts_of(self, request: Request) -> Iterator[Counts]:
        """The same of one that was accepted, whose tenant may have gone meanwhile."""
        tenant = request.tenant.tenant
        return self._counts(tenant if tenant in self.tenants else None, request.traffic_class.name)

    def _promises_of(self, request: Request, now: float) -> Iterator[Promises]:
        for counts in self._counts_of(request):
            yield counts.promises
        yield self.classes[request.traffic_class.name].span(now).promises


def _ttft_kept(request: Request, now: float) -> bool | None:
    """Whether the first token came in time; None if nothing was promised, or if it was not due."""
    target = request.traffic_class.ttft
    if target is None:
        return None
    if request.first_token_at is not None:
        return request.first_token_at - request.arrived_at <= target.seconds
    return False if now - request.arrived_at > target.seconds else None


def _gap_kept(request: Request, now: float) -> bool | None:
    """Whether the tokens after the first came fast enough on the whole, but for the time that it waited for its reader;
    None if nothing was promised, or none came."""
    target = request.traffic_class.gap
    if target is None or request.first_token_at is None:
        return None
    # Outputs of one request run side by side.
    tokens = max(sequence.generated for sequence in request.sequences) - 1
    took_s = now - request.first_token_at - request.seconds_paused(now)
    return took_s / tokens <= target.seconds if tokens > 0 else None
