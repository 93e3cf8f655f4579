"""The real core between simulated gateways and workers, on a virtual clock with random delays."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulated_worker import GREEDY, SimulatedWorker, run_alone, worker_info

from scheduler.actions import (
    Accepted,
    Action,
    CancelDone,
    DropWorker,
    Log,
    PoolUpdate,
    Refused,
    SequenceEnd,
    ToGateway,
    TokenBatch,
    ToWorker,
)
from scheduler.admission import QueueBounds
from scheduler.core import Core, CoreSettings
from scheduler.events import (
    CancelReason,
    CancelReceived,
    EndReason,
    Event,
    GatewayAttached,
    GatewayLost,
    Submission,
    Submitted,
    TimePassed,
    WorkerAttached,
    WorkerInfo,
    WorkerLost,
)
from scheduler.planner import Policy


@dataclass
class Call:
    """One request as its gateway sees it."""

    submission: Submission
    accepted: bool = False
    refused: str | None = None
    tokens: list[int] = field(default_factory=list)
    ends: list[SequenceEnd] = field(default_factory=list)
    cancels_sent: int = 0
    cancels_done: list[CancelDone] = field(default_factory=list)
    # When each token came.
    times: list[float] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return bool(self.refused or self.ends or any(done.found for done in self.cancels_done))

    def expected(self) -> tuple[list[int], EndReason]:
        wish = self.submission
        return run_alone(wish.prompt_token_ids, wish.max_tokens, wish.stop_token_ids, wish.sampling.seed)


WORKER_GRACE_S = 5.0


class VirtualGateway:
    """Keeps what came back and insists on the order the contract promises."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls: dict[int, Call] = {}
        self.pools: PoolUpdate | None = None
        self.lost = False
        self._keys: dict[int, int] = {}

    def receive(self, message: object, now: float) -> None:
        assert not self.lost, "a message to a gateway that is gone"
        if isinstance(message, PoolUpdate):
            self.pools = message
        elif isinstance(message, Accepted):
            call = self.calls[message.request_key]
            assert not call.accepted
            assert not call.over
            call.accepted = True
            (sequence_id,) = message.sequence_ids
            self._keys[sequence_id] = message.request_key
        elif isinstance(message, Refused):
            call = self.calls[message.request_key]
            assert not call.accepted
            assert not call.over
            call.refused = message.failure.reason
        elif isinstance(message, CancelDone):
            call = self.calls[message.request_key]
            assert not (message.found and call.over), "two terminal messages"
            assert message.found or call.over, "neither cancelled nor ended"
            call.cancels_done.append(message)
        else:
            assert isinstance(message, TokenBatch)
            for sequence_id, token in zip(message.sequence_ids, message.token_ids, strict=True):
                call = self.calls[self._keys[sequence_id]]
                assert not call.over, "a token after the end"
                call.tokens.append(token)
                call.times.append(now)
            for end in message.ends:
                call = self.calls[self._keys[end.sequence_id]]
                assert not call.over, "two terminal messages"
                call.ends.append(end)


class VirtualMesh:
    """`step_time` is the length of a step in seconds; messages take up to `delay` seconds and keep their order.

    An idle worker takes up to `wake` seconds to look into its mailbox, in which more commands can arrive.
    """

    def __init__(
        self,
        infos: Sequence[WorkerInfo] | None = None,
        *,
        num_steps: int = 4,
        max_prefill_tokens: int = 0,
        bounds: QueueBounds | None = None,
        seed: int = 0,
        step_time: float = 0.01,
        delay: float = 0.001,
        wake: float = 0.0,
        batching: bool = False,
        **worker_options: bool,
    ) -> None:
        self.infos = list(infos) if infos is not None else [worker_info()]
        addresses = tuple(f"host:{index + 1}" for index in range(len(self.infos)))
        bounds = bounds or QueueBounds(1000, 1_000_000)
        self.core = Core(CoreSettings(addresses, Policy(num_steps, max_prefill_tokens), bounds, WORKER_GRACE_S))
        self.now = 0.0
        self.rng = random.Random(seed)
        self.step_time = step_time
        self.delay = delay
        self.wake = wake
        self.batching = batching
        self.worker_options = worker_options
        self.workers: dict[int, SimulatedWorker] = {}
        self.gateways: dict[int, VirtualGateway] = {}
        self.logs: list[Log] = []
        self.sent: list[ToWorker] = []
        self._links = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        # Last delivery per direction of a stream: messages do not overtake.
        self._last: dict[object, float] = {}
        self._inbox: list[Event] = []

    # Moves of the test.

    def attach_gateway(self, number: int = 1) -> VirtualGateway:
        gateway = self.gateways[number] = VirtualGateway(number)
        self.post(GatewayAttached(number, f"gateway-{number}"))
        return gateway

    def lose_gateway(self, gateway: VirtualGateway) -> None:
        gateway.lost = True
        self.post(GatewayLost(gateway.number))

    def attach_worker(self, index: int = 0) -> SimulatedWorker:
        self._links += 1
        worker = SimulatedWorker(self._links, self.infos[index], **self.worker_options)
        self.workers[worker.link] = worker
        self.post(WorkerAttached(worker.link, f"host:{index + 1}", worker.info))
        return worker

    def lose_worker(self, worker: SimulatedWorker) -> None:
        if self.workers.pop(worker.link, None):
            self.post(WorkerLost(worker.link))

    def submit(self, gateway: VirtualGateway, submission: Submission) -> Call:
        call = gateway.calls[submission.request_key] = Call(submission)
        self.post(Submitted(gateway.number, submission))
        return call

    def cancel(self, gateway: VirtualGateway, call: Call, reason: CancelReason = CancelReason.CLIENT) -> None:
        call.cancels_sent += 1
        self.post(CancelReceived(gateway.number, call.submission.request_key, reason))

    def at(self, time: float, move: Callable[[], Any]) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (time, self._order, move))

    # The machinery.

    def run(self, until: float = float("inf")) -> None:
        """Until nothing is left to happen."""
        while True:
            wake = self.core.wake_at()
            moment = min(self._agenda[0][0] if self._agenda else float("inf"), float("inf") if wake is None else wake)
            if moment > until or moment == float("inf"):
                self.now = max(self.now, min(until, 1e9)) if until < 1e9 else self.now
                return
            self.now = max(self.now, moment)
            if self._agenda and self._agenda[0][0] <= self.now:
                heapq.heappop(self._agenda)[2]()
            else:
                self.post(TimePassed())

    def post(self, event: Event) -> None:
        """Hands an event to the core; with `batching`, several at a time as the loop does under load."""
        self._inbox.append(event)
        if self.batching and self.rng.random() < 0.3:
            self.at(self.now, lambda: None)
            self.at(self.now + 0.0001, self._flush)
            return
        self._flush()

    def _flush(self) -> None:
        inbox, self._inbox = self._inbox, []
        actions: list[Action] = []
        for event in inbox:
            actions += self.core.apply(event, self.now)
        actions += self.core.plan(self.now)
        problems = self.core.check()
        assert not problems, problems
        for action in actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        if isinstance(action, Log):
            self.logs.append(action)
        elif isinstance(action, ToGateway):
            gateway = self.gateways[action.gateway]
            if not gateway.lost:
                gateway.receive(action.message, self.now)
        elif isinstance(action, DropWorker):
            raise AssertionError(action.why)
        else:
            self.sent.append(action)
            self._deliver(("down", action.link), lambda: self._to_worker(action))

    def _deliver(self, stream: object, move: Callable[[], None]) -> None:
        time = max(self._last.get(stream, 0.0), self.now + self.rng.random() * self.delay)
        self._last[stream] = time
        self.at(time, move)

    def _to_worker(self, action: ToWorker) -> None:
        worker = self.workers.get(action.link)
        if worker is not None:
            worker.receive(action.command)
            if self.wake:
                self.at(self.now + self.rng.random() * self.wake, lambda: self._boundary(worker))
            else:
                self._boundary(worker)

    def _boundary(self, worker: SimulatedWorker) -> None:
        if worker.busy or worker.link not in self.workers:
            return
        self._report(worker, worker.begin())
        if worker.busy:
            self.at(self.now + self.step_time, lambda: self._finish(worker))

    def _finish(self, worker: SimulatedWorker) -> None:
        if worker.link in self.workers:
            self._report(worker, worker.finish())
            self._boundary(worker)

    def _report(self, worker: SimulatedWorker, events: list[Event]) -> None:
        for event in events:
            self._deliver(("up", worker.link), lambda event=event: self._from_worker(worker, event))  # type: ignore[misc]

    def _from_worker(self, worker: SimulatedWorker, event: Event) -> None:
        if worker.link in self.workers:
            self.post(event)


def submission(key: int, prompt: Sequence[int] = (1, 2, 3), max_tokens: int = 8, **changes: Any) -> Submission:
    """A request for the tiny model."""
    values: dict[str, Any] = {
        "request_key": key,
        "request_id": f"req-{key}",
        "model": "tiny",
        "model_revision": "r1",
        "prompt_token_ids": tuple(prompt),
        "max_tokens": max_tokens,
        "stop_token_ids": (),
        "sampling": GREEDY,
        "deadline_s": None,
        "prefix_salt": b"",
    }
    return Submission(**{**values, **changes})
