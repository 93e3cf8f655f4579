"""The one owner of the scheduler's state: events in, actions out.

No I/O, no clock, no randomness of its own: the same events at the same times give the same actions. Who sends the
actions, and where events come from, it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from tercet import errors
from tercet.retry import UNKNOWN_RETRY_SECONDS

from . import membership, pausing, reports
from .actions import Action, CancelDone, CostsSoFar
from .audit import audit
from .class_view import ClassesView, view_classes
from .core_settings import CoreSettings
from .ending import cancel, cost_so_far, stop
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
from .intake import Intake
from .lifecycle import State
from .overdue import end_overdue, give_up_hung, next_moment
from .placement import CachedTokens, cached_tokens
from .planning import plan_pools
from .state import MeshState
from .traffic_view import TrafficView, view_traffic
from .worker import Worker


class Core:
    """Single-threaded; every method returns at once. Times are seconds on one monotonic clock."""

    _settings: CoreSettings
    _lookup: CachedTokens
    _mesh: MeshState

    def __init__(self, settings: CoreSettings, lookup: CachedTokens = cached_tokens) -> None:
        """`lookup` says how much of a sequence a worker's prefix cache has."""
        self._settings = settings
        self._lookup = lookup
        self._mesh = MeshState(Fleet(settings.addresses))

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
        plan_pools(self._mesh, self._settings.policy, self._lookup, now)
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

    def class_view(self, now: float) -> ClassesView:
        """What classes ask for and get, but for what takes time for each that waits."""
        return view_classes(self._mesh, self._settings.classes, now)

    @property
    def keeps_tenants(self) -> bool:
        """Whether a gateway ever named tenants."""
        return self._mesh.tenants.kept

    def count_refused(self, tenant: str | None, traffic_class: str, reason: str, count: int) -> None:
        """So many requests were refused at a gateway. Decides nothing, so it is no event."""
        whose, name = None, ""
        if tenant is not None:
            whose, name = self._intake.counted_for(tenant, traffic_class)
        self._mesh.traffic.refused(whose, name, reason, count)

    def compare(self, gateway: int, keys: Set[int]) -> tuple[list[int], list[int]]:
        """With the requests that a gateway takes for running when all that it has said before is handled: those that it
        does not name and nobody has cancelled, and those that it names and are not there."""
        there = self._mesh.gateways.get(gateway, {})
        unnamed = {key for key in there.keys() - keys if there[key].cancelled is None}
        return sorted(unnamed), sorted(keys - there.keys())

    def costs_so_far(self, gateway: int) -> CostsSoFar:
        """Of a gateway's sequences those that have started and not ended."""
        requests = self._mesh.gateways.get(gateway, {}).values()
        live = (each for request in requests for each in request.sequences if each.state is not State.FINISHED)
        return CostsSoFar(tuple((each.sequence_id, cost_so_far(each)) for each in live if each.placements))

    @property
    def workers(self) -> list[Worker]:
        """The live ones; to be looked at only."""
        return list(self._mesh.fleet.workers.values())

    @property
    def mesh(self) -> MeshState:
        """All of the state; to be looked at only."""
        return self._mesh

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
                # What a client has seen the beginning of is not to be repeated behind its back.
                begun = any(sequence.generated for sequence in request.sequences)
                failure = errors.DrainingError(
                    "the scheduler stopped before the request ended",
                    retry_after_s=None if begun else UNKNOWN_RETRY_SECONDS,
                )
                cancel(self._mesh, request, CancelReason.SHUTDOWN, failure, now)

    @property
    def _intake(self) -> Intake:
        return Intake(self._mesh, self._settings, self._lookup)

    def _take_actions(self) -> list[Action]:
        actions, self._mesh.actions = self._mesh.actions, []
        return actions


_HANDLERS: dict[type, Callable[[Core, Any, float], None]] = {
    GatewayAttached: Core._gateway_attached,
    GatewayLost: Core._gateway_lost,
    Submitted: lambda core, event, now: core._intake.submitted(event, now),
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
