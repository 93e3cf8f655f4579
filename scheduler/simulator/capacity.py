"""A capacity run: so many requests through the real core to so many simulated workers, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..actions import ToWorker
from ..admission import AdmissionMode, QueueBounds
from ..credits import blocks_for
from ..events import CancelReason, CancelReceived, Event, Submitted, TenantsChanged, WorkerInfo
from ..policy import Policy
from ..tenant import ANYONE, NamedPlan
from ..traffic_class import CLASSES, DEFAULT_CLASS, TrafficClass
from .cost import StepCost
from .flow_tally import FlowTally
from .gateway import VirtualGateway
from .mesh import VirtualMesh
from .small import worker_info
from .tally import CountingGateway, Tally
from .text import DrawnText
from .worker import SimulatedWorker
from .workload import Arrival, Flow, Requests, Workload

MODEL = "simulated"


@dataclass(frozen=True, slots=True)
class Fleet:
    """`workers` of one kind; the speed of worker i is spread evenly over 1 +- `speed_spread`. Times in seconds."""

    workers: int
    info: WorkerInfo
    cost: StepCost
    speed_spread: float
    message_delay_s: float
    caching: bool

    def costs(self) -> list[StepCost]:
        """One for each worker."""
        return [self.cost.slower(self._slowness(index)) for index in range(self.workers)]

    def _slowness(self, index: int) -> float:
        place = (index / (self.workers - 1) - 0.5) * 2 if self.workers > 1 else 0.0
        return 1.0 + self.speed_spread * place

    def requests_per_second(self, flows: Sequence[Flow]) -> float:
        """What the workers can do at most by a rule of thumb: batches as large as slots and blocks allow, all full."""
        shares = sum(flow.share for flow in flows)
        seconds = sum(flow.share / shares * self._seconds(flow) for flow in flows)
        return self.workers / seconds if seconds else float("inf")

    def _seconds(self, flow: Flow) -> float:
        """Of one worker for a request."""
        info, prompt, output, n = self.info, flow.prompt.mean, flow.output.mean, flow.n
        held = blocks_for(prompt, info.block_size) + n * blocks_for(output, info.block_size)
        batch = max(n, min(info.max_num_seqs, info.max_num_batched_tokens, n * (info.num_blocks // held)))
        step_s = self.cost.seconds(batch, batch * (prompt + output // 2))
        return n * output * step_s / batch + self.cost.token_s * prompt


@dataclass(frozen=True, slots=True)
class Result:
    """`seconds` of virtual time until the last request was over; `loaded_seconds` from the arrival of the first quarter
    of the requests to that of the last."""

    seconds: float
    loaded_seconds: float
    tally: Tally
    # Shares of the time and of the blocks, 0 to 1: the mean over workers, blocks while the worker was busy.
    busy: float
    blocks_used: float
    blocks_used_most: float
    prompt_tokens_cached: int
    prompt_tokens_computed: int


class CapacityMesh(VirtualMesh):
    """A mesh that counts, and keeps nothing of what is over. `run` it, then ask for the `result`."""

    def __init__(
        self,
        fleet: Fleet,
        workload: Workload,
        policy: Policy,
        bounds: QueueBounds,
        seed: int,
        tenants: Sequence[NamedPlan] = (),
        classes: Sequence[TrafficClass] = tuple(CLASSES.values()),
        admission_mode: AdmissionMode = AdmissionMode.ENFORCE,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        named = {each.name: each for each in classes}
        plans = {plan.tenant: plan for plan in tenants}
        self.tally = Tally(
            {flow.name: FlowTally(named[_class_of(flow, plans.get(flow.tenant, ANYONE))]) for flow in workload.flows}
        )
        self.requests = Requests(workload, seed, model=MODEL, max_model_len=fleet.info.max_model_len)
        super().__init__(
            [fleet.info] * fleet.workers,
            policy=policy,
            bounds=bounds,
            classes=classes,
            admission_mode=admission_mode,
            seed=seed,
            costs=fleet.costs(),
            delay=fleet.message_delay_s,
            bundling=True,
            audited=False,
            recorded=False,
            verify=False,
            caching=fleet.caching,
            text=DrawnText(self.requests.lengths),
        )
        self._workload = workload
        self._progress = progress
        self._arrivals = iter(self.requests)
        self._loaded_at = self._last_arrival_at = 0.0
        self._busy_s = 0.0
        # Seconds times blocks in use.
        self._block_s = 0.0
        self._blocks_used_most = 0
        self.clients = CountingGateway(1, self.tally)
        self.attach_gateway()
        if tenants:
            self.post(TenantsChanged(self.clients.number, 1, tuple(tenants)))
        for index in range(fleet.workers):
            self.attach_worker(index)
        self._expect_next()

    def make_gateway(self, _number: int) -> VirtualGateway:
        return self.clients

    def result(self) -> Result:
        """What came of it, once all is over.

        Raises AssertionError if a request is not over: the scheduler has a bug then.
        """
        tally, workers, seconds = self.tally, self.workers.values(), self.clients.last_at
        assert tally.over == self._workload.requests, f"{self._workload.requests - tally.over} requests are not over"
        blocks = self.infos[0].num_blocks
        return Result(
            seconds=seconds,
            loaded_seconds=self._last_arrival_at - self._loaded_at,
            tally=tally,
            busy=self._busy_s / (seconds * len(workers)) if seconds else 0.0,
            blocks_used=self._block_s / (self._busy_s * blocks) if self._busy_s else 0.0,
            blocks_used_most=self._blocks_used_most / blocks,
            prompt_tokens_cached=sum(worker.memory.tokens_cached for worker in workers),
            prompt_tokens_computed=sum(worker.tokens_prefilled for worker in workers),
        )

    def _expect_next(self) -> None:
        """Puts the next request on the agenda; it brings the one after it."""
        arrival = next(self._arrivals, None)
        if arrival is None:
            self.clients.under_load = False
        else:
            self.at(arrival.at, lambda: self._arrive(arrival))

    def _arrive(self, arrival: Arrival) -> None:
        submission = arrival.submission
        self._last_arrival_at = self.now
        if submission.request_key == self._workload.requests // 4 + 1:
            self._loaded_at, self.clients.under_load = self.now, True
        self.clients.open(submission, arrival.flow.name, self.now)
        self.post(Submitted(self.clients.number, submission))
        if arrival.cancel_after_s is not None:
            self.at(self.now + arrival.cancel_after_s, lambda: self._cancel(submission.request_key))
        for over in self.clients.take_over():
            self.requests.forget(over)
        self._progress(self.tally.over)
        self._expect_next()

    def _cancel(self, key: int) -> None:
        # A client that has its answer has nothing to cancel.
        if key in self.clients.asks:
            self.post(CancelReceived(self.clients.number, key, CancelReason.CLIENT))

    def _to_worker(self, link: int, actions: list[ToWorker]) -> None:
        for action in actions:
            self.tally.sent(action.command)
        super()._to_worker(link, actions)

    def _from_worker(self, worker: SimulatedWorker, events: list[Event]) -> None:
        for event in events:
            self.tally.reported(event)
        super()._from_worker(worker, events)

    def _finish(self, worker: SimulatedWorker) -> None:
        used = worker.pool.counts.used
        self._busy_s += worker.step_seconds
        self._block_s += worker.step_seconds * used
        if used > self._blocks_used_most:
            self._blocks_used_most = used
        super()._finish(worker)


def _class_of(flow: Flow, plan: NamedPlan) -> str:
    """The class of its requests, named or not."""
    return flow.traffic_class or plan.default_class or DEFAULT_CLASS.name


def simulated_info(**changes: int) -> WorkerInfo:
    """A worker of the simulated model."""
    return worker_info(
        worker_id="simulated", model=MODEL, device="simulated", dtype="", vocab_size=DrawnText.VOCAB, **changes
    )
