"""Says yes or no to a new request before any work is done for it. Pure; every no is a typed error."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from tercet import errors
from tercet.retry import UNKNOWN_RETRY_SECONDS
from tercet.tenants.plan import MAX_PRIORITY

from .events import Begun, Submission
from .fleet import Fleet
from .pool import Pool
from .sequence import Request, Sequence
from .tenant import NamedPlan
from .traffic_class import TrafficClass
from .usage import Demand
from .waiting import NOBODY, ClassQueue, Line, Waiting, WaitingQueue

# Names in a message that lists what is served.
MAX_MODELS_LISTED = 16
# A seed is a number below this.
SEEDS = 2**64
# Sequences that may wait for each request that may: a request for n outputs is n sequences.
MAX_SEQUENCES_PER_REQUEST = 8


class AdmissionMode(Enum):
    """What becomes of a request whose forecast misses its target or its deadline."""

    # No forecast is made.
    OFF = "off"
    # It is accepted, and what would have become of it is noted.
    SHADOW = "shadow"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Of each pool, or of one class there, and for new requests only: what was accepted once always finds its place
    again. 0: no bound."""

    max_requests: int
    max_tokens: int

    @property
    def max_sequences(self) -> int:
        """Each costs memory, and time in every round that looks at all of them, however short its prompt is."""
        return MAX_SEQUENCES_PER_REQUEST * self.max_requests

    def part(self, share: float) -> QueueBounds:
        """So much of them, at least 1 of each."""
        return QueueBounds(math.ceil(share * self.max_requests), math.ceil(share * self.max_tokens))


@dataclass(frozen=True, slots=True)
class Overflow:
    """A bound that is reached: that of a class or, with an empty name, of the pool. `starts`: how many requests have to
    start first."""

    traffic_class: str
    setting: str
    starts: int

    def error(self, retry_after_s: float) -> errors.QueueFullError:
        """Says which bound it is, but not how much waits: that is others'."""
        section = f"classes.{self.traffic_class}" if self.traffic_class else "scheduler"
        setting = f"{section}.{self.setting}"
        return errors.QueueFullError(
            f"the queue is full ({setting})",
            metadata={"setting": setting, "traffic_class": self.traffic_class},
            retry_after_s=retry_after_s,
        )


def demand_of(submission: Submission) -> Demand:
    """What it asks of its tenant's quota."""
    return Demand(len(submission.prompt_token_ids), submission.max_tokens, submission.n)


def find_pool(submission: Submission, fleet: Fleet) -> Pool:
    """The pool that serves the request. Raises NoWorkerError, ModelNotFoundError, RevisionMismatchError."""
    of_model = [pool for pool in fleet.pools.values() if pool.model == submission.model]
    if not of_model and fleet.complete:
        served = ", ".join(fleet.models()[:MAX_MODELS_LISTED])
        raise errors.ModelNotFoundError(
            f"no worker serves model {submission.model!r}; served: {served}",
            metadata={"model": submission.model, "served": served},
        )
    live = [pool for pool in of_model if pool.live]
    if not live:
        raise errors.NoWorkerError(
            f"no live worker serves model {submission.model!r}",
            metadata={"model": submission.model},
            retry_after_s=UNKNOWN_RETRY_SECONDS,
        )
    for pool in live:
        if pool.model_revision == submission.model_revision:
            return pool
    raise errors.RevisionMismatchError(
        f"the gateway has revision {submission.model_revision!r} of model {submission.model!r},"
        f" the workers have {live[0].model_revision!r}",
        metadata={
            "model": submission.model,
            "gateway_revision": submission.model_revision,
            "worker_revision": live[0].model_revision,
        },
    )


def find_class(asked: str, plan: NamedPlan, classes: tuple[TrafficClass, ...], default: str) -> TrafficClass:
    """The traffic class that a request asks for, that of its tenant if it names none, and then the one named `default`.

    Raises InvalidFieldError for one that there is not, PermissionDeniedError for one that the plan does not include.
    """
    known = tuple(each.name for each in classes)
    allowed = plan.classes or known
    name = asked or plan.default_class or (default if default in allowed else allowed[0])
    found = next((each for each in classes if each.name == name), None)
    if found is None:
        whose = ", which the tenant's plan names" if name in (*plan.classes, plan.default_class) else ""
        raise errors.InvalidFieldError(
            f"there is no traffic class {name!r}{whose}; {_offer('the classes are', allowed, known)}",
            field="traffic_class",
        )
    if name not in allowed:
        raise errors.PermissionDeniedError(
            f"the plan does not include traffic class {name!r}; {_offer('it includes', allowed, known)}",
            metadata={"traffic_class": name},
        )
    return found


def class_of_begun(asked: str, plan: NamedPlan, classes: tuple[TrafficClass, ...], default: str) -> TrafficClass:
    """The traffic class of a request that another scheduler has accepted, whose classes may be others, or when the plan
    was another: the one of that name, whatever the plan says now; else that of a request that names none."""
    named = {each.name: each for each in classes}
    if asked in named:
        return named[asked]
    try:
        return find_class("", plan, classes, default)
    except errors.RequestError:
        return named.get(default, classes[0])


def _offer(words: str, allowed: tuple[str, ...], known: tuple[str, ...]) -> str:
    """Says which classes a tenant may use, and not what others may."""
    offered = [each for each in allowed if each in known]
    return f"{words} {', '.join(offered)}" if offered else "the plan includes none that there is"


def clamp_priority(submission: Submission, plan: NamedPlan) -> Submission:
    """The request as urgent as its plan lets it be. Raises InvalidFieldError for a priority that there is not."""
    if not -MAX_PRIORITY <= submission.priority <= MAX_PRIORITY:
        raise errors.InvalidFieldError(
            f"priority {submission.priority} is outside {-MAX_PRIORITY} to {MAX_PRIORITY}", field="priority"
        )
    if submission.priority >= plan.min_priority:
        return submission
    return replace(submission, priority=plan.min_priority)


def find_overflow(
    submission: Submission, waiting: WaitingQueue, bounds: QueueBounds, traffic_class: TrafficClass, plan: NamedPlan
) -> Overflow | None:
    """Which bound the request would break, that of its class first; None if there is room. An empty queue takes a
    request of any size.

    Nobody is kept out by a flood that he has no part in: what waits of higher ranks does not count to the bounds of the
    pool, and a tenant of whom less waits than his share of a bound has room until there is twice as much.
    """
    own = QueueBounds(traffic_class.max_queued_requests, traffic_class.max_queued_tokens)
    of_class = [each for each in waiting.classes.values() if each.traffic_class.name == traffic_class.name]
    whole = [each for each in waiting.classes.values() if each.traffic_class.rank <= traffic_class.rank]
    return _overflow_for(submission, of_class, own, plan, traffic_class.name) or _overflow_for(
        submission, whole, bounds, plan, ""
    )


def _overflow_for(
    submission: Submission, queues: list[ClassQueue], bounds: QueueBounds, plan: NamedPlan, traffic_class: str
) -> Overflow | None:
    counts = _total(each.counts for each in queues)
    overflow = _overflow(submission, counts, bounds, traffic_class)
    if overflow is None or _overflow(submission, counts, bounds.part(2.0), traffic_class):
        return overflow
    lines = [(tenant, line) for queue in queues for tenant, line in queue.waiting.items()]
    weights = {tenant: line.share.weight for tenant, line in lines} | {plan.tenant: plan.weight}
    mine = _total(_waiting_in(line) for tenant, line in lines if tenant == plan.tenant)
    share = bounds.part(plan.weight / sum(weights.values()))
    return overflow if len(weights) == 1 or _overflow(submission, mine, share, traffic_class) else None


def _waiting_in(line: Line) -> Waiting:
    return Waiting(len(line.sequences), line.num_sequences, line.num_tokens)


def _total(counts: Iterable[Waiting]) -> Waiting:
    requests, sequences, tokens = (sum(column) for column in zip(NOBODY, *counts, strict=True))
    return Waiting(requests, sequences, tokens)


def _overflow(submission: Submission, waiting: Waiting, bounds: QueueBounds, traffic_class: str) -> Overflow | None:
    if not waiting.requests:
        return None
    excess = waiting.requests + 1 - bounds.max_requests
    if bounds.max_requests and excess > 0:
        return Overflow(traffic_class, "max_queued_requests", excess)
    excess = waiting.sequences + submission.n - bounds.max_sequences
    if bounds.max_requests and excess > 0:
        return Overflow(traffic_class, "max_queued_requests", _starts(excess, waiting.sequences, waiting.requests))
    excess = waiting.tokens + len(submission.prompt_token_ids) - bounds.max_tokens
    if bounds.max_tokens and excess > 0:
        return Overflow(traffic_class, "max_queued_tokens", _starts(excess, waiting.tokens, waiting.requests))
    return None


def _starts(excess: int, waiting: int, requests: int) -> int:
    """Requests that have to start until `excess` of what waits has gone, or all has."""
    return min(requests, math.ceil(excess * requests / max(1, waiting)))


def make_request(
    gateway: int, submission: Submission, plan: NamedPlan, traffic_class: TrafficClass, first_id: int, now: float
) -> Request:
    """The request with its sequences, which are numbered from `first_id` by output: a leader and its forks. Of one that
    another scheduler had, those that have not ended, each by itself if they have parted."""
    deadline = None if submission.deadline_s is None else now + submission.deadline_s
    request = Request(gateway, submission, now, deadline, plan, traffic_class)
    sampling, prompt = submission.sampling, list(submission.prompt_token_ids)
    begun = dict(enumerate(submission.begun))
    request.sequences = tuple(
        Sequence(
            sequence_id=first_id + index,
            request=request,
            arrival=first_id + index,
            token_ids=prompt,
            max_length=len(prompt) + submission.max_tokens,
            sampling=replace(sampling, seed=(sampling.seed + index) % SEEDS),
            claim=traffic_class.claim(now, first_id + index),
        )
        for index in range(submission.n)
        if index not in begun or not begun[index].ended
    )
    if any(each.token_ids for each in submission.begun):
        live = [each for each in submission.begun if not each.ended]
        for sequence, before in zip(request.sequences, live, strict=True):
            _continue(sequence, before, now)
        request.first_token_at = now
        return request
    leader, *forks = request.sequences
    leader.forks = tuple(forks)
    for fork in forks:
        fork.leader = leader
    return request


def _continue(sequence: Sequence, before: Begun, now: float) -> None:
    """It was on a worker of another scheduler, and has its place ahead of those that were on none."""
    sequence.token_ids = [*sequence.token_ids, *before.token_ids]
    sequence.placements = 1
    sequence.cached_tokens = before.cached_tokens
    sequence.gpu_us = sequence.gpu_us_elsewhere = before.gpu_us
    sequence.cpu_us_elsewhere = before.cpu_us
    sequence.started_at = now + before.queue_s
