"""The one owner of the scheduler's state: events in, actions out.

No I/O, no clock, no randomness of its own: the same events at the same times give the same actions. Who sends the
actions, and where events come from, it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tercet import errors
from tercet.retry import UNKNOWN_RETRY_SECONDS

from . import membership, pausing, reports
from .actions import REQUEST_REFUSED, Accepted, Action, CancelDone, NewSequence, Refused, ToWorker
from .admission import (
    AdmissionMode,
    QueueBounds,
    clamp_priority,
    class_of_begun,
    demand_of,
    find_class,
    find_overflow,
    find_pool,
    make_request,
)
from .audit import audit
from .dispatch import dispatch
from .ending import cancel, stop
from .events import (
    AddressesChanged,
    CancelReason,
    CancelReceived,
    DrainExpired,
    DrainStarted,
    Event,
    GatewayAttached,
    GatewayLost,
    KvChanged,
    PauseReceived,
    PlanEnded,
    SequenceReleased,
    SequenceRests,
    SequenceStopped,
    StepReported,
    Submission,
    Submitted,
    TenantsChanged,
    TimePassed,
    UnpauseReceived,
    WorkerAttached,
    WorkerDraining,
    WorkerLost,
)
from .fleet import Fleet
from .fleet_view import FleetView
from .overdue import end_overdue, give_up_hung, next_moment
from .placement import CachedTokens, cached_tokens
from .policy import Policy
from .pool import Pool
from .progress import HUNG_SECONDS
from .sequence import Request, Sequence, State
from .sizes import check_fields, check_sizes, check_vocabulary, fit_to_plan
from .state import MeshState
from .tenant import TenantPlan
from .traffic_class import CLASSES, DEFAULT_CLASS, TrafficClass
from .traffic_view import TrafficView, view_traffic
from .worker import Worker


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """What the operator decides."""

    addresses: tuple[str, ...]
    policy: Policy
    bounds: QueueBounds
    # How long a sequence waits, in seconds, for a worker that can run it: a restart loads the weights anew.
    worker_grace_s: float = 30.0
    # How long a worker may owe a report, in seconds, where steps are short and others could go on with what it has.
    hung_s: float = HUNG_SECONDS
    classes: tuple[TrafficClass, ...] = tuple(CLASSES.values())
    default_class: str = DEFAULT_CLASS.name
    admission_mode: AdmissionMode = AdmissionMode.ENFORCE


class Core:
    """Single-threaded; every method returns at once. Times are seconds on one monotonic clock."""

    _settings: CoreSettings
    _lookup: CachedTokens
    _mesh: MeshState
    _next_id: int

    def __init__(self, settings: CoreSettings, lookup: CachedTokens = cached_tokens) -> None:
        """`lookup` says how much of a sequence a worker's prefix cache has."""
        self._settings = settings
        self._lookup = lookup
        self._mesh = MeshState(Fleet(settings.addresses))
        self._next_id = 1

    def handle(self, event: Event, now: float) -> list[Action]:
        """One event and all that follows from it, in order."""
        return self.apply(event, now) + self.plan(now)

    def apply(self, event: Event, now: float) -> list[Action]:
        """One event without planning. After a batch of these, call `plan`."""
        _HANDLERS[type(event)](self, event, now)
        return self._take_actions()

    def plan(self, now: float) -> list[Action]:
        """Ends what is overdue, then plans wherever something changed."""
        give_up_hung(self._mesh, self._settings.hung_s, now)
        end_overdue(self._mesh, self._settings.worker_grace_s, now)
        self._plan(now)
        return self._take_actions()

    def wake_at(self) -> float | None:
        """When to send TimePassed at the latest; None if nothing depends on time."""
        return next_moment(self._mesh, self._settings.worker_grace_s)

    @property
    def idle(self) -> bool:
        """Whether every accepted request has ended."""
        return not self._mesh.sequences

    @property
    def num_sequences(self) -> int:
        """Accepted ones that have not ended."""
        return len(self._mesh.sequences)

    def view(self) -> FleetView:
        """The mesh now."""
        return self._mesh.view()

    def traffic(self, now: float, max_tenants: int) -> TrafficView:
        """What classes and tenants ask for and get; of at most so many tenants."""
        return view_traffic(self._mesh, self._settings.classes, now, max_tenants)

    @property
    def keeps_tenants(self) -> bool:
        """Whether a gateway ever named tenants."""
        return self._mesh.tenants.kept

    def count_refused(self, tenant: str | None, traffic_class: str, reason: str, count: int) -> None:
        """So many requests were refused at a gateway. Decides nothing, so it is no event."""
        whose, name = (None, "") if tenant is None else self._whose(tenant, traffic_class)
        self._mesh.traffic.refused(whose, name, reason, count)

    def request_keys(self, gateway: int) -> set[int]:
        """Of a gateway's requests that have not ended."""
        return set(self._mesh.gateways.get(gateway, ()))

    def wanted_keys(self, gateway: int) -> set[int]:
        """Those of them that nobody has cancelled."""
        return {key for key, request in self._mesh.gateways.get(gateway, {}).items() if request.cancelled is None}

    def running(self, gateway: int) -> list[Sequence]:
        """Of a gateway's sequences those that have not ended; to be looked at only."""
        requests = self._mesh.gateways.get(gateway, {}).values()
        return [each for request in requests for each in request.sequences if each.state is not State.FINISHED]

    @property
    def workers(self) -> list[Worker]:
        """The live ones; to be looked at only."""
        return list(self._mesh.fleet.workers.values())

    def check(self) -> list[str]:
        """What does not add up; empty when all does. For after `plan`."""
        return audit(self._mesh)

    def _gateway_attached(self, event: GatewayAttached, _now: float) -> None:
        self._mesh.gateways[event.gateway] = {}
        self._mesh.send(event.gateway, self._mesh.pool_update())
        self._mesh.log("gateway_attached", gateway_id=event.gateway_id)

    def _gateway_lost(self, event: GatewayLost, now: float) -> None:
        requests = self._mesh.gateways.pop(event.gateway, None)
        if requests is None:
            return
        self._mesh.tenants.gateway_lost(event.gateway, now)
        self._forget_tenants()
        self._mesh.log("gateway_lost", requests=len(requests))
        for request in list(requests.values()):
            cancel(self._mesh, request, CancelReason.LINK_LOST, None, now)

    def _tenants_changed(self, event: TenantsChanged, now: float) -> None:
        if event.gateway not in self._mesh.gateways:
            return
        self._mesh.tenants.learn(event, now)
        self._forget_tenants()

    def _forget_tenants(self) -> None:
        """Counts tenants that are gone as one."""
        if self._mesh.tenants.kept:
            self._mesh.traffic.keep(self._mesh.tenants.plans.keys())

    def _submitted(self, event: Submitted, now: float) -> None:
        if event.gateway not in self._mesh.gateways:
            return
        try:
            pool, request = self._admit(event.gateway, event.submission, now)
        except errors.RequestError as error:
            # Where it was raised there are the error itself and the request: a cycle for the garbage collector.
            self._refuse(event.gateway, event.submission, error.with_traceback(None))
        else:
            self._accept(pool, request, now)

    def _refuse(self, gateway: int, submission: Submission, error: errors.RequestError) -> None:
        self._mesh.send(gateway, Refused(submission.request_key, error))
        tenant, traffic_class = self._whose(submission.tenant, submission.traffic_class)
        self._mesh.traffic.refused(tenant, traffic_class, error.reason)
        self._mesh.log(
            REQUEST_REFUSED,
            request_id=submission.request_id,
            model=submission.model,
            tenant=tenant,
            traffic_class=traffic_class,
            reason=error.reason,
            field=error.metadata.get("field"),
            why=error.message,
            retry_after_s=error.retry_after_s,
            prompt_tokens=len(submission.prompt_token_ids),
        )

    def _whose(self, tenant: str, traffic_class: str) -> tuple[str | None, str]:
        """Tenant and class that a refusal counts for; None and empty if there is none of that name."""
        try:
            plan = self._mesh.tenants.plan_of(tenant)
        except errors.PermissionDeniedError:
            return None, ""
        try:
            return plan.tenant, self._class_of(traffic_class, plan).name
        except errors.RequestError:
            return plan.tenant, ""

    def _class_of(self, name: str, plan: TenantPlan) -> TrafficClass:
        return find_class(name, plan, self._settings.classes, self._settings.default_class)

    def _admit(self, gateway: int, submission: Submission, now: float) -> tuple[Pool, Request]:
        """The request, and who takes it. Raises the RequestError that refuses it; then nothing of it is left but what
        is noted of forecasts. For a full queue a plan may have been made meanwhile, as after any event."""
        if submission.request_key in self._mesh.gateways[gateway]:
            raise errors.DuplicateRequestError(
                f"request key {submission.request_key} is in use on this stream",
                metadata={"request_key": str(submission.request_key)},
            )
        if self._mesh.draining:
            raise errors.DrainingError("the scheduler is stopping", retry_after_s=UNKNOWN_RETRY_SECONDS)
        plan = self._mesh.tenants.plan_of(submission.tenant)
        if submission.begun:
            return self._go_on(gateway, submission, plan, now)
        traffic_class = self._class_of(submission.traffic_class, plan)
        submission = clamp_priority(submission, plan)
        pool = find_pool(submission, self._mesh.fleet)
        submission = fit_to_plan(submission, pool, plan)
        check_sizes(submission, pool, plan)
        _check_deadline(submission)
        self._mesh.tenants.usage_of(plan, now).check(demand_of(submission), traffic_class.name, now)
        self._check_queue(submission, pool, traffic_class, plan, now)
        request = make_request(gateway, submission, plan, traffic_class, self._next_id, now)
        try:
            self._foresee(pool, request, now)
            check_vocabulary(submission, pool)
        except errors.RequestError:
            request.let_go()
            raise
        return pool, request

    def _go_on(self, gateway: int, submission: Submission, plan: TenantPlan, now: float) -> tuple[Pool, Request]:
        """One that another scheduler has accepted. What it may be is not asked again: classes, plan and bounds may have
        changed since, and of the workers those that are large enough for it may come yet. Raises the RequestError of
        a model that nobody serves, or of a gateway's bug."""
        settings = self._settings
        submission = clamp_priority(submission, plan)
        pool = find_pool(submission, self._mesh.fleet)
        submission = fit_to_plan(submission, pool, plan)
        check_fields(submission)
        _check_deadline(submission)
        traffic_class = class_of_begun(submission.traffic_class, plan, settings.classes, settings.default_class)
        return pool, make_request(gateway, submission, plan, traffic_class, self._next_id, now)

    def _foresee(self, pool: Pool, request: Request, now: float) -> None:
        """Raises SloUnreachableError, DeadlineUnreachableError."""
        mode = self._settings.admission_mode
        if mode is AdmissionMode.OFF:
            return
        problem = self._mesh.foresight(pool).foresee(pool, request, self._settings.policy, self._lookup, now)
        if problem is None:
            return
        if mode is AdmissionMode.ENFORCE:
            if problem.retry_after_s is not None:
                name = request.traffic_class.name
                problem.retry_after_s = self._mesh.spread(pool, name, problem.retry_after_s, now)
            raise problem
        self._mesh.log(
            "refusal_foreseen",
            request_id=request.submission.request_id,
            tenant=request.tenant.tenant,
            traffic_class=request.traffic_class.name,
            reason=problem.reason,
            why=problem.message,
            retry_after_s=problem.retry_after_s,
        )

    def _check_queue(
        self, submission: Submission, pool: Pool, traffic_class: TrafficClass, plan: TenantPlan, now: float
    ) -> None:
        """Raises QueueFullError."""
        bounds = self._settings.bounds
        if find_overflow(submission, pool.waiting, bounds, traffic_class, plan) is None:
            return
        # In a burst the queue may hold what a plan can start at once; and what is overdue, and not to start any more.
        end_overdue(self._mesh, self._settings.worker_grace_s, now)
        self._plan(now)
        overflow = find_overflow(submission, pool.waiting, bounds, traffic_class, plan)
        if overflow is not None:
            name = overflow.traffic_class
            soonest_s = self._mesh.pace(pool, name).seconds_for(overflow.starts, now)
            raise overflow.error(self._mesh.spread(pool, name, soonest_s, now))

    def _accept(self, pool: Pool, request: Request, now: float) -> None:
        submission = request.submission
        self._mesh.tenants.let_in(request, demand_of(submission), now)
        self._next_id += submission.n
        self._mesh.gateways[request.gateway][submission.request_key] = request
        for sequence in request.sequences:
            self._mesh.sequences[sequence.sequence_id] = sequence
        self._mesh.set_alarms(request)
        self._mesh.traffic.accepted(request)
        ahead, *_ = [pool.queue(each, now) for each in request.sequences if each.leader is None]
        self._mesh.note_waits(pool, request.traffic_class.name, now)
        self._mesh.foresight(pool).queued(request, now)
        self._mesh.touch(pool)
        ids = tuple(sequence.sequence_id for sequence in request.sequences)
        ttft, gap = request.traffic_class.ttft, request.traffic_class.gap
        self._mesh.send(
            request.gateway,
            Accepted(
                request_key=submission.request_key,
                sequence_ids=ids,
                queue_position=ahead,
                forecast_s=request.forecast_s,
                traffic_class=request.traffic_class.name,
                ttft_target_s=None if ttft is None else ttft.seconds,
                gap_target_s=None if gap is None else gap.seconds,
            ),
        )

    def _cancel_received(self, event: CancelReceived, now: float) -> None:
        request = self._mesh.gateways.get(event.gateway, {}).get(event.request_key)
        if request is None:
            self._mesh.send(event.gateway, CancelDone(event.request_key))
            return
        self._mesh.log("cancel_received", request_id=request.submission.request_id, reason=event.reason.name)
        request.cancels += 1
        cancel(self._mesh, request, event.reason, None, now)

    def _sequence_stopped(self, event: SequenceStopped, now: float) -> None:
        sequence = self._mesh.sequences.get(event.sequence_id)
        # One that is gone has said so.
        if sequence is not None and sequence.request.gateway == event.gateway:
            stop(self._mesh, sequence, event.reason, now)

    def _pause_received(self, event: PauseReceived, now: float) -> None:
        request = self._mesh.gateways.get(event.gateway, {}).get(event.request_key)
        # One that is gone has said so.
        if request is not None:
            pausing.pause(self._mesh, request, now)

    def _unpause_received(self, event: UnpauseReceived, now: float) -> None:
        request = self._mesh.gateways.get(event.gateway, {}).get(event.request_key)
        if request is not None:
            pausing.unpause(self._mesh, request, now)

    def _addresses_changed(self, event: AddressesChanged, _now: float) -> None:
        self._mesh.fleet.look_at(event.addresses)
        self._mesh.pools_changed()

    def _time_passed(self, _event: TimePassed, _now: float) -> None:
        """`plan`, which follows, looks at the time."""

    def _drain_started(self, _event: DrainStarted, _now: float) -> None:
        self._mesh.draining = True

    def _drain_expired(self, _event: DrainExpired, now: float) -> None:
        self._mesh.draining = True
        for requests in list(self._mesh.gateways.values()):
            for request in list(requests.values()):
                failure = errors.DrainingError(
                    "the scheduler stopped before the request ended", retry_after_s=UNKNOWN_RETRY_SECONDS
                )
                cancel(self._mesh, request, CancelReason.SHUTDOWN, failure, now)

    def _plan(self, now: float) -> None:
        dirty, self._mesh.dirty = self._mesh.dirty, {}
        for pool in dirty.values():
            actions = dispatch(pool, self._settings.policy, now, self._lookup)
            self._note_starts(pool, actions, now)
            self._mesh.actions += actions

    def _note_starts(self, pool: Pool, actions: list[Action], now: float) -> None:
        """How fast its queue moves."""
        started = [
            self._mesh.sequences[action.command.sequence_id].request.traffic_class.name
            for action in actions
            if isinstance(action, ToWorker) and isinstance(action.command, NewSequence)
        ]
        if started:
            self._mesh.note_starts(pool, started, now)

    def _take_actions(self) -> list[Action]:
        actions, self._mesh.actions = self._mesh.actions, []
        return actions


def _check_deadline(submission: Submission) -> None:
    """Raises DeadlineError."""
    if submission.deadline_s is not None and submission.deadline_s <= 0:
        raise errors.DeadlineError("the deadline had passed when the request arrived")


_HANDLERS: dict[type, Callable[[Core, Any, float], None]] = {
    GatewayAttached: Core._gateway_attached,
    GatewayLost: Core._gateway_lost,
    Submitted: Core._submitted,
    TenantsChanged: Core._tenants_changed,
    CancelReceived: Core._cancel_received,
    SequenceStopped: Core._sequence_stopped,
    PauseReceived: Core._pause_received,
    UnpauseReceived: Core._unpause_received,
    AddressesChanged: Core._addresses_changed,
    WorkerAttached: lambda core, event, now: membership.worker_attached(core._mesh, event, now),
    WorkerLost: lambda core, event, now: membership.worker_lost(core._mesh, event, now),
    WorkerDraining: lambda core, event, now: membership.worker_draining(core._mesh, event, now),
    KvChanged: lambda core, event, _now: reports.kv_changed(core._mesh, event),
    StepReported: lambda core, event, now: reports.step_reported(core._mesh, event, now),
    PlanEnded: lambda core, event, now: reports.plan_ended(core._mesh, event, now),
    SequenceReleased: lambda core, event, now: reports.sequence_released(core._mesh, event, now),
    SequenceRests: lambda core, event, now: reports.sequence_rests(core._mesh, event, now),
    TimePassed: Core._time_passed,
    DrainStarted: Core._drain_started,
    DrainExpired: Core._drain_expired,
}
