"""The same process with a real worker in it: executor, block pool in C++, a model, both codecs."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace

from scheduler.actions import WorkerCommand
from scheduler.events import BlockCounts, EndReason, Event, WorkerInfo
from scheduler.simulator.cost import StepCost
from scheduler.simulator.gateway import Call
from tests.mesh.alone import Lone, run_alone
from tests.mesh.real_worker import Device, RealWorker, Setup
from worker.messages import EndReason as WorkerEndReason
from worker.messages import Sampling

from .process import Process, Wire
from .worker_world import WorkerWorld

MODEL = "hash"


class RealProcess(Process):
    """The executor outlives streams; what it does when one is gone is its own affair."""

    def __init__(self, info: WorkerInfo) -> None:
        super().__init__(info, StepCost(0.0))
        setup = Setup(
            MODEL,
            info.block_size,
            info.num_blocks,
            info.max_num_seqs,
            info.max_num_batched_tokens,
            num_swap_blocks=info.num_swap_blocks,
            swap_block_ns=info.swap_block_ns,
        )
        self._device = Device(setup, Counter())
        self.info = replace(self._device.info, worker_id=info.worker_id, epoch=info.epoch)
        self._stream: RealWorker | None = None
        # What has been received and not been read.
        self._arrived: deque[WorkerCommand] = deque()

    def attach(self, wire: Wire) -> list[Event]:
        self.wire = wire
        self._arrived.clear()
        # A step that is being computed for the stream before ends unheard.
        self._stream = RealWorker(wire.link, self._device, 0)
        return [*self._stream.begin()]

    def forget(self) -> None:
        if self._stream is not None:
            self._arrived.clear()
            self._stream.detach()
        self._stream = self.wire = None

    def receive(self, command: WorkerCommand) -> None:
        assert self._stream is not None
        self._arrived.append(command)
        self._stream.receive(command)

    @property
    def at_boundary(self) -> bool:
        stream = self._stream
        return stream is not None and not stream.busy and bool(self._arrived or self._device.computes)

    @property
    def in_step(self) -> bool:
        return self._stream is not None and self._stream.busy

    def step(self) -> list[Event]:
        assert self._stream is not None
        if self._stream.busy:
            return self._stream.finish()
        self._arrived.clear()
        return self._stream.begin()

    @property
    def empty(self) -> bool:
        return self._stream is None or (self._stream.empty and not self._arrived)

    @property
    def counts(self) -> BlockCounts:
        return self._device.counts

    @property
    def keys(self) -> set[int]:
        return set(self._device.kv_cache.pool.published_keys().tolist())

    def check(self) -> None:
        self._device.check()


class RealWorkerWorld(WorkerWorld):
    """Can only be walked: what is in C++ cannot be copied."""

    def make_process(self, info: WorkerInfo) -> Process:
        return RealProcess(info)

    def text_alone(self, call: Call, index: int) -> tuple[list[int], EndReason]:
        asked = call.submission
        seed = (asked.sampling.seed + index) % 2**64
        sampling = Sampling(asked.sampling.temperature, asked.sampling.top_p, asked.sampling.top_k, seed=seed)
        lone = Lone(MODEL, asked.prompt_token_ids, asked.max_tokens, frozenset(asked.stop_token_ids), sampling)
        tokens, reason = run_alone(lone)
        return list(tokens), EndReason.STOP if reason is WorkerEndReason.STOP else EndReason.LENGTH
