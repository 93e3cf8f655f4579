"""A real worker for a virtual clock: executor, block pool and model as they are, no thread, no sockets.

All that goes in and out has been through the codecs of both sides as bytes.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from dataclasses import dataclass

import torch

from scheduler.actions import WorkerCommand
from scheduler.events import BlockCounts, StepReported, WorkerInfo
from scheduler.events import Event as SchedulerEvent
from scheduler.link import command_to_proto, event_from_proto, info_from_proto
from scheduler.sequence import Sequence
from tercet.mesh.v1 import worker_pb2
from tests.mesh.contract import Contract
from tests.mesh.models import CPU, MAX_MODEL_LEN, model_of, poison
from tests.worker.eager_graphs import eager_graph_steps
from tests.worker.grammar_process import LocalGrammars
from worker import _core
from worker.codec import decode_command, encode_event
from worker.executor import Executor
from worker.host_steps import HostSteps
from worker.kv_cache import KVCache
from worker.messages import Attach, Command, Detach, Event
from worker.steps import Steps
from worker.swap_space import SwapSpace


@dataclass(frozen=True, slots=True)
class Setup:
    """A worker's size. `step_s` is what its steps take by its own clock, in seconds."""

    model: str = "hash"
    block_size: int = 4
    num_blocks: int = 32
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 16
    caching: bool = True
    num_swap_blocks: int = 0
    swap_block_ns: int = 0
    step_s: float = 0.01
    captured: bool = False  # its device computes runs by itself


class CountingCache(KVCache):
    """Counts in `seen` how often a shared block became a copy."""

    seen: Counter[str]

    def reserve(self, table: _core.BlockTable, num_tokens: int) -> None:
        before = table.blocks()
        super().reserve(table, num_tokens)
        self.seen["copy on write"] += table.blocks()[: len(before)] != before


@dataclass(frozen=True, slots=True)
class Read:
    """Stands where a command is read among the events of the worker that reads it."""

    command: WorkerCommand


class WatchedExecutor(Executor):
    """Says when it reads a command of the scheduler: `unread` has those that it has not."""

    unread: deque[tuple[Command, WorkerCommand]]

    def _obey(self, command: Command) -> None:
        if self.unread and self.unread[0][0] is command:
            self._outbox.put(Read(self.unread.popleft()[1]))  # type: ignore[arg-type]
        super()._obey(command)


class Device:
    """A worker's process: it outlives the streams of its scheduler."""

    _epochs = itertools.count(1)

    def __init__(self, setup: Setup, seen: Counter[str]) -> None:
        self.setup = setup
        self.seen = seen
        self.model = model_of(setup.model)
        self.hello = _hello(setup, self.model.config.vocab_size, next(self._epochs))
        self.kv_cache = CountingCache(
            self.model.config, setup.num_blocks, setup.block_size, torch.float32, CPU, setup.caching
        )
        self.kv_cache.seen = seen
        poison(self.kv_cache.layers)
        # As the scheduler knows them, once for each time that they were sent here.
        self.placed: list[Sequence] = []
        # Called twice a step.
        ticks = itertools.count()
        self.swap_space = SwapSpace(self.kv_cache, setup.num_swap_blocks)
        self.unread: deque[tuple[Command, WorkerCommand]] = deque()
        self.executor = WatchedExecutor(
            self._steps(),
            self.kv_cache,
            self.swap_space,
            grammars=LocalGrammars(rng=random.Random(setup.num_blocks)),
            check_every_step=True,
            clock=lambda: next(ticks) * setup.step_s,
        )
        self.executor.unread = self.unread

    def _steps(self) -> Steps:
        if self.setup.captured:
            # Nothing is launched ahead: a plan that was revoked is over where its revocation is read.
            return eager_graph_steps(self.model, self.kv_cache, None, self.setup.max_num_seqs)  # type: ignore[arg-type]
        return HostSteps(self.model, self.kv_cache)  # type: ignore[arg-type]

    @property
    def info(self) -> WorkerInfo:
        """As the scheduler hears it."""
        return info_from_proto(worker_pb2.Hello.FromString(self.hello.SerializeToString()))

    @property
    def counts(self) -> BlockCounts:
        """The pool now."""
        counts = self.kv_cache.counts()
        return BlockCounts(counts.free, counts.cached, counts.used)

    def obey(self) -> None:
        """What the executor does at a boundary."""
        self.executor.obey()
        self.check()

    def check(self) -> None:
        """Both pools. Raises PoolCorrupt."""
        self.executor._sequences.check()

    def step(self) -> None:
        """A step, if there is one to compute."""
        self.executor.step()
        self.check()

    @property
    def computes(self) -> bool:
        """Whether it has steps to compute, or on their way."""
        return bool(self.executor._works or self.executor._plans)

    def run_on(self, num_steps: int) -> None:
        """The stream is gone and the executor has not heard of it: it goes on with the plans it has."""
        for _ in range(num_steps):
            self.obey()
            self.step()


def _hello(setup: Setup, vocab_size: int, epoch: int) -> worker_pb2.Hello:
    return worker_pb2.Hello(
        worker_id=f"worker-{epoch}",
        epoch=epoch,
        model="tiny",
        model_revision="r1",
        device="cpu",
        dtype="float32",
        block_size=setup.block_size,
        num_blocks=setup.num_blocks,
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        max_model_len=MAX_MODEL_LEN,
        vocab_size=vocab_size,
        num_swap_blocks=setup.num_swap_blocks,
        swap_block_ns=setup.swap_block_ns,
    )


class RealWorker:
    """One stream to a device, with the face of SimulatedWorker: `receive` commands; call `begin` at each boundary and,
    if `busy` then, `finish` when the step ends."""

    def __init__(self, link: int, device: Device, index: int) -> None:
        """`index` is that of its address."""
        self.link = link
        self.device = device
        self.index = index
        self.info = device.info
        self.draining = False
        self.busy = False
        self._contract = Contract(self.info)
        self._mailbox: deque[WorkerCommand] = deque()
        self._emitted: list[Event | Read] = []
        self._step: list[SchedulerEvent] = []
        device.executor.submit(Attach(self._emitted.append))

    @property
    def empty(self) -> bool:
        """Whether it has no sequence."""
        return self.device.executor.num_sequences == 0

    @property
    def step_seconds(self) -> float:
        """What a step takes."""
        return self.device.setup.step_s

    def receive(self, command: WorkerCommand) -> None:
        """It is read at the next boundary."""
        self._mailbox.append(command)

    def begin(self) -> list[SchedulerEvent]:
        """A step boundary: reads the mailbox, ends plans without work, computes the next step if there is one."""
        assert not self.busy
        while self._mailbox:
            command = self._mailbox.popleft()
            message = worker_pb2.WorkerCommand.FromString(command_to_proto(command).SerializeToString())
            decoded = decode_command(message, self.device.hello)
            self.device.unread.append((decoded, command))
            self.device.executor.submit(decoded)
        events: list[SchedulerEvent] = []
        while True:
            # What is computed is told before a command that changes it is obeyed: so a step may be told by that, too.
            self.device.obey()
            told = self._take()
            if not _has_step(told):
                events += told
                self.device.step()
                told = self._take()
            if _has_step(told):
                # It tells when the step's time is over.
                self.busy, self._step = True, told
                return events
            events += told
            if not (told or self.device.computes):
                return events

    def finish(self) -> list[SchedulerEvent]:
        """The step ends."""
        assert self.busy
        self.busy = False
        step, self._step = self._step, []
        return step

    def detach(self) -> None:
        """The executor hears that the stream is gone."""
        self.device.executor.submit(Detach(self._emitted.append))
        self.device.obey()

    def _take(self) -> list[SchedulerEvent]:
        events = []
        for emitted in self._emitted:
            if isinstance(emitted, Read):
                self._contract.read(emitted.command)
            else:
                events.append(self._translate(emitted))
                self._contract.check(events[-1])
        # Not a new list: the executor has this one's `append`.
        self._emitted.clear()
        self._contract.check_answers()
        return events

    def _translate(self, event: Event) -> SchedulerEvent:
        message = encode_event(event).SerializeToString()
        return event_from_proto(worker_pb2.WorkerEvent.FromString(message), self.link)


def _has_step(events: list[SchedulerEvent]) -> bool:
    return any(isinstance(event, StepReported) for event in events)
