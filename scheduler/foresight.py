"""What a pool expects of its newcomers, and what it learns as their first tokens come.

Holds what was learned; the forecast itself is in forecast.py, what is refused for it in verdict.py. Nothing is learned
from who follows a grammar: that may have to be compiled first, for seconds, and says nothing of the queue. Times are
seconds on the scheduler's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from tercet import errors
from tercet.retry import bounded_retry

from .bounds import Bound, bound_of_class, bound_of_tenant
from .calibration import ForecastError, ForecastErrors, Ratios
from .events import CancelReason
from .fair_order import due_after
from .forecast import forecast
from .inflow import Inflow
from .leaving import leaving
from .newcomer import Newcomer
from .outlook import FirstToken, Kind, Outlook
from .output_length import LeaveRates, OutputLengths
from .placement import CachedTokens
from .policy import Policy
from .pool import Pool
from .promise import aim, booked
from .sequence import Request, Sequence
from .surroundings import Surroundings, surroundings
from .traffic_class import TrafficClass
from .verdict import chance_within, misses_deadline, misses_target
from .worker import Worker

# When nothing was learned of a kind for so long, the next of it that is to be refused is let in, to see; for so many
# times as long as its class promises a first token in, if that is more: most of these are late, and clients wait.
PROBE_SECONDS = 5.0
PROBE_TARGETS = 5.0
# Twice as long for each try in a row that was late, and for each miss that its tenant's account owes, up to so many: on
# a pool that serves one in a second a try each 5 s would alone break the promise.
MOST_TRIES_MISSED = 6
MOST_MISSES_OWED = 3.0
# A forecast is far off from this part of what its class promises on.
FAR_PART = 0.4
# Classes' tenants of whom it is known how much they ask for, unless more of them do ask.
MOST_INFLOWS = 1000
# First tokens that say which part of prompts is cached, and the part from which on it pays to look each prompt up.
CACHED_MEMORY = 32
CACHED_SHARE_LOOKED_UP = 0.02


@dataclass(frozen=True, slots=True)
class ForecastView:
    """How good forecasts were; of requests that were to be refused and ran all the same, how many were in time."""

    error: ForecastError | None
    tried: int
    tried_in_time: int


@dataclass(slots=True, eq=False)
class Foresight:
    """Of one pool."""

    ratios: dict[Kind, Ratios] = field(default_factory=dict)
    outputs: dict[str, OutputLengths] = field(default_factory=dict)
    off: ForecastErrors = field(default_factory=ForecastErrors)
    # When something was last learned.
    learned_at: dict[Kind, float] = field(default_factory=dict)
    # Of those let in to see, how many in a row were not in time; one under way counts as late.
    tries_missed: dict[Kind, int] = field(default_factory=dict)
    # By class and tenant: misses to spare. What one tenant's flood misses is not taken from another.
    spare: dict[tuple[str, str], float] = field(default_factory=dict)
    # Prompt tokens of requests that have got their first token, older ones fading, and those that a prefix cache had.
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    # Prompt tokens that have arrived, by class, and by class and tenant.
    inflows: dict[str, Inflow] = field(default_factory=dict)
    tenant_inflows: dict[tuple[str, str], Inflow] = field(default_factory=dict)
    # Beyond so many it is looked who asks for nothing any more: twice as many as were left the last time, so that each
    # of them is not looked at for every request.
    most_inflows: int = MOST_INFLOWS
    tried: int = 0
    tried_in_time: int = 0

    def foresee(
        self, pool: Pool, request: Request, policy: Policy, lookup: CachedTokens, now: float
    ) -> errors.RequestError | None:
        """Notes on a request that is about to be queued when its first token is expected, if that is known.

        Returns what refuses it, None if nothing does. If it is queued all the same, it shows whether that was right.
        """
        leader, traffic_class = request.sequences[0], request.traffic_class
        workers = {
            worker.link: (worker, leaving(pool, worker, self._outputs, now))
            for worker in pool.workers.values()
            if worker.usable and worker.can_ever_take(leader)
        }
        newcomer = Newcomer(
            prompt_tokens=len(leader.token_ids),
            members=len(leader.group),
            rank=traffic_class.rank,
            claim=leader.claim,
            due_s=due_after(traffic_class) if traffic_class.ttft is not None else inf,
            computed={link: self._computed(worker, leader, lookup) for link, (worker, _) in workers.items()},
        )
        around = self._surroundings(pool, request, now)
        bounds = self._bounds(pool, workers, leader, around)
        first_token = forecast(workers, newcomer, around, bounds, policy, now)
        if first_token is None:
            return None
        outlook, problem = self._judge(pool, request, first_token, now)
        if problem is not None and self._to_be_tried(request, outlook, now):
            problem = None
        if problem is not None and first_token.place_s:
            # Room need not be made for it as late as that.
            sooner = forecast(workers, replace(newcomer, due_s=0.0), around, bounds, policy, now)
            assert sooner is not None
            hasty, still = self._judge(pool, request, sooner, now)
            if still is None or self._to_be_tried(request, hasty, now):
                request.due_s, outlook, problem = 0.0, hasty, None
            elif problem.retry_after_s is not None:
                # Until the next one is let in to see; and meanwhile others show whether it is still so.
                tried_s = min(self._tried_at(request, each) for each in (outlook, hasty)) - now
                problem.retry_after_s = bounded_retry(min(problem.retry_after_s, tried_s, PROBE_SECONDS))
        request.outlook, request.forecast_s = outlook, outlook.seconds
        return problem

    def _judge(
        self, pool: Pool, request: Request, first_token: FirstToken, now: float
    ) -> tuple[Outlook, errors.RequestError | None]:
        """What is expected of a request by that forecast, and what refuses it."""
        traffic_class = request.traffic_class
        target = traffic_class.ttft
        far = first_token.seconds > FAR_PART * traffic_class.claim_s
        kind = Kind(traffic_class.name, first_token.regime, _in_line(pool, request), far)
        ratios = self.ratios.setdefault(kind, Ratios())
        ratios.fade(now)
        deadline_s = request.submission.deadline_s
        hopeless = misses_deadline(first_token, ratios, deadline_s)
        spare = self.spare.get(request.whose, 0.0)
        if request.follows_grammar:
            # Their misses are not booked, so there are none to spare for them.
            spare = min(spare, 0.0)
        unlikely = misses_target(first_token, ratios, traffic_class, spare)
        target_s = target.seconds if target is not None and unlikely is not None else None
        outlook = Outlook(
            kind=kind,
            first_token=first_token,
            seconds=first_token.seconds * ratios.quantile(0.5),
            chance=None if target is None else chance_within(target.seconds, first_token, ratios),
            limit_s=target_s if hopeless is None else deadline_s,
        )
        return outlook, hopeless or unlikely

    def queued(self, request: Request, now: float) -> None:
        """A request was accepted."""
        tokens, name = len(request.sequences[0].token_ids), request.traffic_class.name
        self.inflows.setdefault(name, Inflow(now)).add(tokens, now)
        self.tenant_inflows.setdefault((name, request.tenant.tenant), Inflow(now)).add(tokens, now)
        if len(self.tenant_inflows) > self.most_inflows:
            self.tenant_inflows = {key: each for key, each in self.tenant_inflows.items() if each.per_second(now) > 1.0}
            self.spare = {key: each for key, each in self.spare.items() if key in self.tenant_inflows}
            self.most_inflows = max(MOST_INFLOWS, 2 * len(self.tenant_inflows))
        target, outlook = request.traffic_class.ttft, request.outlook
        if outlook is None:
            return
        if outlook.to_be_refused:
            if not self._to_be_tried(request, outlook, now):
                return
            # The next ones of its kind are refused until it shows what becomes of it, or has been too long about it.
            self.learned_at[outlook.kind] = now
            if not request.follows_grammar:
                self.tries_missed[outlook.kind] = self.tries_missed.get(outlook.kind, 0) + 1
        if request.follows_grammar:
            return
        # What is late even alone is no reason to refuse others.
        if target is not None and outlook.chance is not None and outlook.first_token.alone_s <= target.seconds:
            self._book(request, outlook.chance - aim(target))

    def first_token(self, request: Request, now: float) -> None:
        """A request has got its first token."""
        leader = request.sequences[0]
        self.prompt_tokens += leader.prompt_length - self.prompt_tokens / CACHED_MEMORY
        self.cached_tokens += leader.cached_tokens - self.cached_tokens / CACHED_MEMORY
        outlook, target, actual_s = request.outlook, request.traffic_class.ttft, now - request.arrived_at
        if outlook is None or request.follows_grammar:
            return
        self._learn(outlook, actual_s, now)
        self.off.add(outlook.seconds, actual_s)
        if outlook.limit_s is not None:
            self.tried += 1
            if actual_s <= outlook.limit_s:
                self.tried_in_time += 1
                self.tries_missed.pop(outlook.kind, None)
        if target is not None and request.booked is not None:
            self._book(request, (actual_s <= target.seconds) - aim(target))

    def gave_up(self, request: Request, now: float) -> None:
        """A request has ended without a token: it would have come later still."""
        outlook, target, waited_s = request.outlook, request.traffic_class.ttft, now - request.arrived_at
        if outlook is None or request.follows_grammar:
            return
        if waited_s > outlook.seconds:
            self._learn(outlook, waited_s, now)
        # The gateway may have seen the deadline a little sooner.
        expired = request.sequences[0].cancel_reason is CancelReason.DEADLINE
        if outlook.limit_s is not None:
            if expired or now >= request.arrived_at + outlook.limit_s:
                self.tried += 1
            elif missed := self.tries_missed.get(outlook.kind):
                # Who left before it was late shows nothing.
                self.tries_missed[outlook.kind] = missed - 1
        if target is not None and request.booked is not None:
            # Who left before it was late shows nothing.
            self._book(request, -aim(target) if waited_s > target.seconds else 0.0)

    def left(self, sequence: Sequence) -> None:
        """A sequence has left its worker for good."""
        self._outputs(sequence.request.traffic_class.name).ended(sequence.generated)

    @property
    def cached_share(self) -> float:
        """The part of prompts that prefix caches have."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def view(self) -> ForecastView:
        """How good forecasts were."""
        return ForecastView(self.off.view(), self.tried, self.tried_in_time)

    def _book(self, request: Request, met: float) -> None:
        """As of promise.booked, in place of what was booked for that request before."""
        target, whose = request.traffic_class.ttft, request.whose
        assert target is not None
        before = self.spare.get(whose, 0.0) - (request.booked or 0.0)
        self.spare[whose] = booked(target, before, met)
        # Near the bounds of an account that is less than what came of it.
        request.booked = self.spare[whose] - before

    def _to_be_tried(self, request: Request, outlook: Outlook, now: float) -> bool:
        """Whether the next of its kind is let in whatever is forecast: nothing was learned of them for long."""
        return now >= self._tried_at(request, outlook)

    def _tried_at(self, request: Request, outlook: Outlook) -> float:
        """From when on it is. Never if there is nothing to be learned, since it is late for sure."""
        if outlook.limit_s is not None and outlook.first_token.soonest_s > outlook.limit_s:
            return inf
        target, owed = request.traffic_class.ttft, -self.spare.get(request.whose, 0.0)
        long_s = PROBE_SECONDS if target is None else max(PROBE_SECONDS, PROBE_TARGETS * target.seconds)
        doublings = min(self.tries_missed.get(outlook.kind, 0), MOST_TRIES_MISSED) + min(
            max(owed, 0.0), MOST_MISSES_OWED
        )
        wait_s: float = long_s * 2.0**doublings
        return self.learned_at.get(outlook.kind, -inf) + wait_s

    def _learn(self, outlook: Outlook, actual_s: float, now: float) -> None:
        self.ratios.setdefault(outlook.kind, Ratios()).add(actual_s / outlook.first_token.seconds, now)
        self.learned_at[outlook.kind] = now

    def _outputs(self, traffic_class: str) -> OutputLengths:
        return self.outputs.setdefault(traffic_class, OutputLengths())

    def _surroundings(self, pool: Pool, request: Request, now: float) -> Surroundings:
        inflows = {name: each.per_second(now) for name, each in self.inflows.items()}
        own = self.tenant_inflows.get((request.traffic_class.name, request.tenant.tenant))
        own_inflow = 0.0 if own is None else own.per_second(now)
        seats = {
            name: _seats(pool, each.traffic_class)
            for name, each in pool.waiting.classes.items()
            if each.traffic_class.max_running
        }
        urgency = request.sequences[0].urgency
        around = surroundings(
            pool.waiting, request.traffic_class, request.tenant, urgency, inflows, own_inflow, seats, now
        )
        return replace(around, fresh=1.0 - self.cached_share)

    def _bounds(
        self, pool: Pool, workers: Mapping[int, tuple[Worker, LeaveRates]], leader: Sequence, around: Surroundings
    ) -> list[Bound]:
        """Those that hold for a newcomer. A tenant's max_concurrent is none: whoever is let in by it may start."""
        of_class, of_tenant = leader.request.traffic_class.max_running, leader.request.tenant.kv_share
        if not workers or not (of_class or of_tenant):
            return []
        most = leader.request.submission.max_tokens
        fresh = self._outputs(leader.request.traffic_class.name).leaving((0,), most)
        bounds = [bound_of_class(workers, leader, around, fresh)] if of_class else []
        return [*bounds, bound_of_tenant(pool, workers, leader, around, fresh)] if of_tenant else bounds

    def _computed(self, worker: Worker, leader: Sequence, lookup: CachedTokens) -> int:
        """Tokens of the prompt that the worker would have to compute."""
        length = len(leader.token_ids)
        if self.cached_share < CACHED_SHARE_LOOKED_UP:
            # Keys of its blocks are not made for nothing.
            return length
        return max(1, length - lookup(worker, leader, ()))


def _seats(pool: Pool, traffic_class: TrafficClass) -> int:
    """Sequences that a class with a max_running may start before one of its own ends."""
    sizes = (worker.class_sizes.get(traffic_class.name, 0) for worker in pool.live)
    return sum(max(0, traffic_class.max_running - size) for size in sizes)


def _in_line(pool: Pool, request: Request) -> bool:
    queue = pool.waiting.classes.get(request.traffic_class.name)
    return queue is not None and len(queue.lines) > 1 and request.tenant.tenant in queue.waiting
