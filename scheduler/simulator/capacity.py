"""A capacity run: so many requests through the real core to so many simulated workers, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..actions import ToWorker
from ..admission import QueueBounds
from ..credits import blocks_for
from ..events import CancelReason, CancelReceived, Event, Submitted, WorkerInfo
from ..planner import Policy
from .cost import StepCost
from .mesh import VirtualMesh
from .small import worker_info
from .tally import CountingGateway, Tally
from .text import DrawnText
from .worker import SimulatedWorker
from .workload import Arrival, Requests, Workload

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

    def requests_per_second(self, prompt_tokens: int, output_tokens: int) -> float:
        """What the workers can do at most by a rule of thumb: batches as large as slots and blocks allow, all full."""
        info = self.info
        held = blocks_for(prompt_tokens + output_tokens, info.block_size)
        batch = max(1, min(info.max_num_seqs, info.max_num_batched_tokens, info.num_blocks // held))
        step_s = self.cost.seconds(batch, batch * (prompt_tokens + output_tokens // 2))
        seconds = output_tokens * step_s / batch + self.cost.token_s * prompt_tokens
        return self.workers / seconds if seconds else float("inf")


@dataclass(frozen=True, slots=True)
class Result:
    """`seconds` of virtual time until the last request was over."""

    seconds: float
    tally: Tally
    # Shares of the time and of the blocks, 0 to 1: the mean over workers, blocks while the worker was busy.
    busy: float
    blocks_used: float
    blocks_used_most: float
    prompt_tokens_cached: int
    prompt_tokens_computed: int


class CapacityMesh(VirtualMesh):
    """A mesh that counts, and keeps nothing of what is over."""

    workers: dict[int, SimulatedWorker]

    def __init__(self, fleet: Fleet, policy: Policy, bounds: QueueBounds, requests: Requests, seed: int) -> None:
        self.requests = requests
        self.tally = Tally()
        self.busy_s = 0.0
        self.block_s = 0.0
        self.blocks_used_most = 0
        super().__init__(
            [fleet.info] * fleet.workers,
            policy=policy,
            bounds=bounds,
            seed=seed,
            costs=fleet.costs(),
            delay=fleet.message_delay_s,
            bundling=True,
            audited=False,
            recorded=False,
            verify=False,
            caching=fleet.caching,
            text=DrawnText(requests.lengths),
        )

    def make_gateway(self, number: int) -> CountingGateway:
        return CountingGateway(number, self.tally)

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
        self.busy_s += worker.step_seconds
        self.block_s += worker.step_seconds * used
        if used > self.blocks_used_most:
            self.blocks_used_most = used
        super()._finish(worker)


def simulate(
    fleet: Fleet,
    workload: Workload,
    policy: Policy,
    bounds: QueueBounds,
    seed: int,
    progress: Callable[[int], None] = lambda _: None,
) -> Result:
    """Runs until every request is over. The same arguments give the same result; `progress` is told how many are over.

    Raises AssertionError if a request is never over: the scheduler has a bug then.
    """
    requests = Requests(workload, seed, model=MODEL, max_model_len=fleet.info.max_model_len)
    mesh = CapacityMesh(fleet, policy, bounds, requests, seed)
    gateway = mesh.attach_gateway()
    assert isinstance(gateway, CountingGateway)
    for index in range(fleet.workers):
        mesh.attach_worker(index)
    arrivals = iter(requests)
    _arrive_next(mesh, gateway, arrivals, progress)
    mesh.run()
    tally = mesh.tally
    assert tally.over == workload.requests, f"{workload.requests - tally.over} requests were never over"
    workers = mesh.workers.values()
    blocks = fleet.info.num_blocks
    return Result(
        seconds=gateway.last_at,
        tally=tally,
        busy=mesh.busy_s / (gateway.last_at * fleet.workers) if gateway.last_at else 0.0,
        blocks_used=mesh.block_s / (mesh.busy_s * blocks) if mesh.busy_s else 0.0,
        blocks_used_most=mesh.blocks_used_most / blocks,
        prompt_tokens_cached=sum(worker.tokens_cached for worker in workers),
        prompt_tokens_computed=sum(worker.tokens_prefilled for worker in workers),
    )


def _arrive_next(
    mesh: CapacityMesh, gateway: CountingGateway, arrivals: Iterator[Arrival], progress: Callable[[int], None]
) -> None:
    """Puts the next request on the agenda; it brings the one after it."""
    arrival = next(arrivals, None)
    if arrival is None:
        return

    def come() -> None:
        wish = arrival.submission
        gateway.open(wish, mesh.now)
        mesh.post(Submitted(gateway.number, wish))
        for over in gateway.take_over():
            mesh.requests.forget(over)
        if arrival.cancel_after_s is not None:
            mesh.at(mesh.now + arrival.cancel_after_s, lambda: _cancel(mesh, gateway, wish.request_key))
        progress(mesh.tally.over)
        _arrive_next(mesh, gateway, arrivals, progress)

    mesh.at(arrival.at, come)


def _cancel(mesh: CapacityMesh, gateway: CountingGateway, key: int) -> None:
    # A client that has its answer has nothing to cancel.
    if key in gateway.asks:
        mesh.post(CancelReceived(gateway.number, key, CancelReason.CLIENT))


def simulated_info(**changes: int) -> WorkerInfo:
    """A worker of the simulated model."""
    return worker_info(
        worker_id="simulated", model=MODEL, device="simulated", dtype="", vocab_size=DrawnText.VOCAB, **changes
    )
