"""The real core between simulated gateways and workers, on a virtual clock with random delays.

All that is going to happen is on one agenda; moves of one moment happen in the order in which they were put there.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..actions import Action, DropWorker, Log, ToGateway, ToWorker
from ..admission import AdmissionMode, QueueBounds
from ..core import Core
from ..core_settings import CoreSettings
from ..events import (
    CancelReason,
    CancelReceived,
    Event,
    GatewayAttached,
    GatewayLost,
    KvChanged,
    PauseReceived,
    PlanEnded,
    SequenceReleased,
    SequenceStopped,
    StepReported,
    Submission,
    Submitted,
    TimePassed,
    UnpauseReceived,
    WorkerAttached,
    WorkerDraining,
    WorkerInfo,
    WorkerLost,
)
from ..policy import Policy
from ..traffic_class import CLASSES, TrafficClass
from .cost import StepCost
from .gateway import Call, VirtualGateway
from .small import submission as submission  # so that one import is enough for a small mesh
from .small import worker_info
from .worker import SimulatedWorker

WORKER_GRACE_S = 5.0

# After these the core does not want to be woken earlier than before.
_REPORTS = (StepReported, PlanEnded, SequenceReleased, KvChanged)
_NEVER = float("inf")


class VirtualMesh:
    """`step_time` is the length of a step in seconds, unless `costs` says it for each worker; messages take up to
    `delay` seconds and keep their order.

    An idle worker takes up to `wake` seconds to look into its mailbox, in which more commands can arrive. `batching`:
    now and then several events reach the core at a time, as they do under load. `bundling`: all there is to say to a
    peer at one moment is one message, which takes `delay` seconds exactly. `audited`: raises AssertionError as soon as
    the books do not balance after an event. `recorded`: `logs` and `sent` keep the core's logs and commands.
    """

    def __init__(
        self,
        infos: Sequence[WorkerInfo] | None = None,
        *,
        num_steps: int = 4,
        max_prefill_tokens: int = 0,
        policy: Policy | None = None,
        bounds: QueueBounds | None = None,
        classes: Sequence[TrafficClass] = tuple(CLASSES.values()),
        admission_mode: AdmissionMode = AdmissionMode.ENFORCE,
        seed: int = 0,
        step_time: float = 0.01,
        costs: Sequence[StepCost] | None = None,
        delay: float = 0.001,
        wake: float = 0.0,
        batching: bool = False,
        bundling: bool = False,
        audited: bool = True,
        recorded: bool = True,
        **worker_options: Any,
    ) -> None:
        self.infos = list(infos) if infos is not None else [worker_info()]
        self.costs = list(costs) if costs is not None else [StepCost(step_time)] * len(self.infos)
        addresses = tuple(f"host:{index + 1}" for index in range(len(self.infos)))
        policy = policy or Policy(num_steps, max_prefill_tokens)
        bounds = bounds or QueueBounds(1000, 1_000_000)
        settings = CoreSettings(
            addresses, policy, bounds, WORKER_GRACE_S, classes=tuple(classes), admission_mode=admission_mode
        )
        self.core = Core(settings)
        self.now = 0.0
        self.rng = random.Random(seed)
        self.step_time = step_time
        self.delay = delay
        self.wake = wake
        self.batching = batching
        self.bundling = bundling
        self.audited = audited
        self.recorded = recorded
        self.worker_options = worker_options
        self.workers: dict[int, SimulatedWorker] = {}
        self.gateways: dict[int, VirtualGateway] = {}
        self.logs: list[Log] = []
        self.sent: list[ToWorker] = []
        # By link: at which index it was attached; and those whose device does not answer.
        self._indices: dict[int, int] = {}
        self._hung: set[int] = set()
        self._links = 0
        self._agenda: list[tuple[float, int, Callable[[], Any]]] = []
        self._order = 0
        # Last delivery per direction of a stream: messages do not overtake.
        self._last: dict[object, float] = {}
        self._inbox: list[Event] = []
        self._wake_at = _NEVER
        self._wake_known = False

    # Moves of whoever tells the story.

    def attach_gateway(self, number: int = 1) -> VirtualGateway:
        """A gateway comes."""
        gateway = self.gateways[number] = self.make_gateway(number)
        self.post(GatewayAttached(number, f"gateway-{number}"))
        return gateway

    def lose_gateway(self, gateway: VirtualGateway) -> None:
        """A gateway goes."""
        gateway.lost = True
        self.post(GatewayLost(gateway.number))

    def attach_worker(self, index: int = 0) -> SimulatedWorker:
        """Worker `index` comes, on a new stream and with nothing in its pool."""
        self._links += 1
        worker = SimulatedWorker(self._links, self.infos[index], cost=self.costs[index], **self.worker_options)
        self.workers[worker.link] = worker
        self._indices[worker.link] = index
        self.post(WorkerAttached(worker.link, f"host:{index + 1}", worker.info))
        # What its prefix cache has follows.
        self._boundary(worker)
        return worker

    def drain_worker(self, worker: SimulatedWorker, grace_s: float | None = None) -> None:
        """A worker is told to stop. It goes after `grace_s` seconds, earlier if it has nothing then; None: it stays."""
        self._report(worker, [WorkerDraining(worker.link)])
        if grace_s is not None:
            deadline = self.now + grace_s
            self.at(self.now + min(grace_s, self.step_time), lambda: self._stop_drained(worker, deadline))

    def lose_worker(self, worker: SimulatedWorker) -> None:
        """A worker goes."""
        if self.workers.pop(worker.link, None):
            self.post(WorkerLost(worker.link))

    def hang_worker(self, worker: SimulatedWorker) -> None:
        """The device of a worker stands still until `wake_worker`."""
        self._hung.add(worker.link)

    def wake_worker(self, worker: SimulatedWorker) -> SimulatedWorker:
        """It goes on where it was, and is returned. One that was given up meanwhile comes back on a new stream, with
        nothing; what it still has to say on the old one comes behind that."""
        self._hung.discard(worker.link)
        if worker.link in self.workers:
            (self._finish if worker.busy else self._boundary)(worker)
            return worker
        back = self.attach_worker(self._indices[worker.link])
        for event in worker.finish() if worker.busy else worker.begin():
            self.post(event)
        return back

    def submit(self, gateway: VirtualGateway, submission: Submission) -> Call:
        """A request comes."""
        call = gateway.calls[submission.request_key] = Call(submission)
        self.post(Submitted(gateway.number, submission))
        return call

    def cancel(self, gateway: VirtualGateway, call: Call, reason: CancelReason = CancelReason.CLIENT) -> None:
        """A gateway takes a request back."""
        call.cancels_sent += 1
        self.post(CancelReceived(gateway.number, call.submission.request_key, reason))

    def stop(self, gateway: VirtualGateway, call: Call, index: int = 0) -> None:
        """A gateway has all it wants of one output. Nothing if the request has not been accepted."""
        if call.accepted:
            call.outputs[index].stopped = True
            self.post(SequenceStopped(gateway.number, call.sequence_ids[index], CancelReason.STOP_STRING))

    def pause(self, gateway: VirtualGateway, call: Call) -> None:
        """The reader of a request falls behind."""
        if call.paused_at is None:
            call.paused_at = self.now
        self.post(PauseReceived(gateway.number, call.submission.request_key))

    def unpause(self, gateway: VirtualGateway, call: Call) -> None:
        """And catches up."""
        call.paused_at = None
        self.post(UnpauseReceived(gateway.number, call.submission.request_key))

    def at(self, time: float, move: Callable[[], Any]) -> None:
        """Puts a move on the agenda."""
        self._order += 1
        heapq.heappush(self._agenda, (time, self._order, move))

    def run(self, until: float = _NEVER) -> None:
        """Until nothing is left to happen, or the clock says `until`."""
        agenda = self._agenda
        while True:
            if not self._wake_known:
                wake = self.core.wake_at()
                self._wake_at, self._wake_known = _NEVER if wake is None else wake, True
            moment = self._wake_at
            if agenda and agenda[0][0] < moment:
                moment = agenda[0][0]
            if moment > until or moment == _NEVER:
                self.now = max(self.now, min(until, 1e9)) if until < 1e9 else self.now
                return
            if moment > self.now:
                self.now = moment
            if agenda and agenda[0][0] <= self.now:
                heapq.heappop(agenda)[2]()
                continue
            # It may have put the moment off since it was asked.
            wake = self.core.wake_at()
            self._wake_at = _NEVER if wake is None else wake
            if self._wake_at <= self.now:
                self.post(TimePassed())

    def post(self, event: Event) -> None:
        """Hands an event to the core."""
        self._inbox.append(event)
        if self.batching and self.rng.random() < 0.3:
            self.at(self.now, lambda: None)
            self.at(self.now + 0.0001, self._flush)
            return
        self._flush()

    # The machinery.

    def make_gateway(self, number: int) -> VirtualGateway:
        """Another kind of gateway goes here."""
        return VirtualGateway(number)

    def _flush(self) -> None:
        inbox, self._inbox = self._inbox, []
        actions: list[Action] = []
        for event in inbox:
            if not isinstance(event, _REPORTS):
                self._wake_known = False
            actions += self.core.apply(event, self.now)
        actions += self.core.plan(self.now)
        if self.audited:
            problems = self.core.check()
            assert not problems, problems
        if self.bundling:
            self._send_bundles(actions)
            return
        for action in actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        if isinstance(action, Log):
            if self.recorded:
                self.logs.append(action)
        elif isinstance(action, ToGateway):
            gateway = self.gateways[action.gateway]
            if not gateway.lost:
                gateway.receive(action.message, self.now)
        elif isinstance(action, DropWorker):
            assert action.link in self._hung, action.why
            self.at(self.now, partial(self.lose_worker, self.workers[action.link]))
        else:
            if self.recorded:
                self.sent.append(action)
            self._deliver(("down", action.link), lambda: self._to_worker(action.link, [action]))

    def _send_bundles(self, actions: list[Action]) -> None:
        bundles: dict[int, list[ToWorker]] = {}
        for action in actions:
            if isinstance(action, ToWorker):
                bundles.setdefault(action.link, []).append(action)
            else:
                self._act(action)
        for link, bundle in bundles.items():
            if self.recorded:
                self.sent += bundle
            self.at(self.now + self.delay, partial(self._to_worker, link, bundle))

    def _deliver(self, stream: object, move: Callable[[], None]) -> None:
        time = max(self._last.get(stream, 0.0), self.now + self.rng.random() * self.delay)
        self._last[stream] = time
        self.at(time, move)

    def _to_worker(self, link: int, actions: list[ToWorker]) -> None:
        worker = self.workers.get(link)
        if worker is None:
            return
        for action in actions:
            worker.receive(action.command)
        if self.wake:
            self.at(self.now + self.rng.random() * self.wake, lambda: self._boundary(worker))
        else:
            self._boundary(worker)

    def _boundary(self, worker: SimulatedWorker) -> None:
        if worker.busy or worker.link not in self.workers or worker.link in self._hung:
            return
        self._report(worker, worker.begin())
        if worker.busy:
            self.at(self.now + worker.step_seconds, lambda: self._finish(worker))

    def _finish(self, worker: SimulatedWorker) -> None:
        if worker.link in self.workers and worker.link not in self._hung:
            self._report(worker, worker.finish())
            self._boundary(worker)

    def _report(self, worker: SimulatedWorker, events: list[Event]) -> None:
        if self.bundling:
            if events:
                self.at(self.now + self.delay, lambda: self._from_worker(worker, events))
            return
        for event in events:
            self._deliver(("up", worker.link), partial(self._from_worker, worker, [event]))

    def _from_worker(self, worker: SimulatedWorker, events: list[Event]) -> None:
        if worker.link not in self.workers:
            return
        if self.bundling:
            self._inbox += events
            self._flush()
            return
        for event in events:
            self.post(event)

    def _stop_drained(self, worker: SimulatedWorker, deadline: float) -> None:
        if worker.link not in self.workers:
            return
        if self.now >= deadline or (worker.empty and not worker.busy):
            self.lose_worker(worker)
        else:
            self.at(min(deadline, self.now + self.step_time), lambda: self._stop_drained(worker, deadline))
