"""A request comes to the scheduler: it is let into the queue of its pool, or refused for what stands against it.

Asks admission.py, sizes.py, the tenant's quota and the forecast, in this order, and changes nothing before all have
said yes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tercet import errors
from tercet.retry import UNKNOWN_RETRY_SECONDS

from .actions import REQUEST_REFUSED, Accepted, Refused
from .admission import (
    AdmissionMode,
    clamp_priority,
    class_of_begun,
    demand_of,
    find_class,
    find_overflow,
    find_pool,
    make_request,
)
from .core_settings import CoreSettings
from .events import Submission, Submitted
from .overdue import end_overdue
from .placement import CachedTokens
from .planning import plan_pools
from .pool import Pool
from .sequence import Request
from .sizes import check_fields, check_sizes, check_vocabulary, fit_to_plan
from .state import MeshState
from .tenant import NamedPlan
from .traffic_class import TrafficClass


@dataclass(frozen=True, slots=True)
class Intake:
    """Lets requests in. `lookup` says how much of a sequence a worker's prefix cache has."""

    mesh: MeshState
    settings: CoreSettings
    lookup: CachedTokens

    def submitted(self, event: Submitted, now: float) -> None:
        """A gateway submits a request."""
        if event.gateway not in self.mesh.gateways:
            return
        try:
            pool, request = self._admit(event.gateway, event.submission, now)
        except errors.RequestError as error:
            # Where it was raised there are the error itself and the request: a cycle for the garbage collector.
            self._refuse(event.gateway, event.submission, error.with_traceback(None))
        else:
            self._accept(pool, request, now)

    def counted_for(self, tenant: str, traffic_class: str) -> tuple[str | None, str]:
        """Tenant and class that a refusal counts for; None and empty if there is none of that name."""
        try:
            plan = self.mesh.tenants.plan_of(tenant)
        except errors.PermissionDeniedError:
            return None, ""
        try:
            return plan.tenant, self._class_of(traffic_class, plan).name
        except errors.RequestError:
            return plan.tenant, ""

    def _refuse(self, gateway: int, submission: Submission, error: errors.RequestError) -> None:
        self.mesh.send(gateway, Refused(submission.request_key, error))
        tenant, traffic_class = self.counted_for(submission.tenant, submission.traffic_class)
        self.mesh.traffic.refused(tenant, traffic_class, error.reason)
        self.mesh.log(
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

    def _class_of(self, name: str, plan: NamedPlan) -> TrafficClass:
        return find_class(name, plan, self.settings.classes, self.settings.default_class)

    def _admit(self, gateway: int, submission: Submission, now: float) -> tuple[Pool, Request]:
        """The request, and who takes it. Raises the RequestError that refuses it; then nothing of it is left but what
        is noted of forecasts. For a full queue a plan may have been made meanwhile, as after any event."""
        if submission.request_key in self.mesh.gateways[gateway]:
            raise errors.DuplicateRequestError(
                f"request key {submission.request_key} is in use on this stream",
                metadata={"request_key": str(submission.request_key)},
            )
        if self.mesh.draining:
            raise errors.DrainingError("the scheduler is stopping", retry_after_s=UNKNOWN_RETRY_SECONDS)
        plan = self.mesh.tenants.plan_of(submission.tenant)
        if submission.begun:
            return self._go_on(gateway, submission, plan, now)
        traffic_class = self._class_of(submission.traffic_class, plan)
        submission = clamp_priority(submission, plan)
        pool = find_pool(submission, self.mesh.fleet)
        submission = fit_to_plan(submission, pool, plan)
        check_sizes(submission, pool, plan)
        _check_deadline(submission)
        self.mesh.tenants.usage_of(plan, now).check(demand_of(submission), traffic_class.name, now)
        self._check_queue(submission, pool, traffic_class, plan, now)
        request = make_request(gateway, submission, plan, traffic_class, self.mesh.next_id, now)
        try:
            self._foresee(pool, request, now)
            check_vocabulary(submission, pool)
        except errors.RequestError:
            request.let_go()
            raise
        return pool, request

    def _go_on(self, gateway: int, submission: Submission, plan: NamedPlan, now: float) -> tuple[Pool, Request]:
        """One that another scheduler has accepted. What it may be is not asked again: classes, plan and bounds may have
        changed since, and of the workers those that are large enough for it may come yet. Raises the RequestError of a
        model that nobody serves, or of a gateway's bug."""
        submission = clamp_priority(submission, plan)
        pool = find_pool(submission, self.mesh.fleet)
        submission = fit_to_plan(submission, pool, plan)
        check_fields(submission)
        _check_deadline(submission)
        traffic_class = class_of_begun(
            submission.traffic_class, plan, self.settings.classes, self.settings.default_class
        )
        return pool, make_request(gateway, submission, plan, traffic_class, self.mesh.next_id, now)

    def _foresee(self, pool: Pool, request: Request, now: float) -> None:
        """Raises SloUnreachableError, DeadlineUnreachableError."""
        mode = self.settings.admission_mode
        if mode is AdmissionMode.OFF:
            return
        problem = self.mesh.foresight(pool).foresee(pool, request, self.settings.policy, self.lookup, now)
        if problem is None:
            return
        if mode is AdmissionMode.ENFORCE:
            if problem.retry_after_s is not None:
                problem.retry_after_s = self.mesh.spread(pool, request.traffic_class.name, problem.retry_after_s, now)
            raise problem
        self.mesh.log(
            "refusal_foreseen",
            request_id=request.submission.request_id,
            tenant=request.tenant.tenant,
            traffic_class=request.traffic_class.name,
            reason=problem.reason,
            why=problem.message,
            retry_after_s=problem.retry_after_s,
        )

    def _check_queue(
        self,
        submission: Submission,
        pool: Pool,
        traffic_class: TrafficClass,
        plan: NamedPlan,
        now: float,
    ) -> None:
        """Raises QueueFullError."""
        if find_overflow(submission, pool.waiting, self.settings.bounds, traffic_class, plan) is None:
            return
        # In a burst the queue may hold what a plan can start at once; and what is overdue, and not to start any more.
        end_overdue(self.mesh, self.settings.worker_grace_s, now)
        plan_pools(self.mesh, self.settings.policy, self.lookup, now)
        overflow = find_overflow(submission, pool.waiting, self.settings.bounds, traffic_class, plan)
        if overflow is not None:
            name = overflow.traffic_class
            soonest_s = self.mesh.pace(pool, name).seconds_for(overflow.starts, now)
            raise overflow.error(self.mesh.spread(pool, name, soonest_s, now))

    def _accept(self, pool: Pool, request: Request, now: float) -> None:
        submission = request.submission
        self.mesh.tenants.let_in(request, demand_of(submission), now)
        self.mesh.next_id += submission.n
        self.mesh.gateways[request.gateway][submission.request_key] = request
        for sequence in request.sequences:
            self.mesh.sequences[sequence.sequence_id] = sequence
        self.mesh.set_alarms(request)
        self.mesh.traffic.accepted(request)
        ahead, *_ = [pool.queue(each, now) for each in request.sequences if each.leader is None]
        self.mesh.note_waits(pool, request.traffic_class.name, now)
        self.mesh.foresight(pool).queued(request, now)
        self.mesh.touch(pool)
        ids = tuple(sequence.sequence_id for sequence in request.sequences)
        ttft, gap = request.traffic_class.ttft, request.traffic_class.gap
        self.mesh.send(
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


def _check_deadline(submission: Submission) -> None:
    """Raises DeadlineError."""
    if submission.deadline_s is not None and submission.deadline_s <= 0:
        raise errors.DeadlineError("the deadline had passed when the request arrived")
