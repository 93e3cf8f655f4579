"""A worker's process, as the worlds of the protocol know one: the simulator's worker, which checks every block."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from scheduler.actions import WorkerCommand
from scheduler.events import BlockCounts, Event, KvChanged, WorkerInfo
from scheduler.simulator.cost import StepCost
from scheduler.simulator.memory import SimulatedMemory
from scheduler.simulator.worker import SimulatedWorker


@dataclass(slots=True)
class Wire:
    """One stream: what is on its way down and up. A broken one carries nothing."""

    link: int
    down: deque[WorkerCommand] = field(default_factory=deque)
    up: deque[Event] = field(default_factory=deque)
    broken: bool = False


class Process:
    """A worker's process. Its prefix cache outlives the streams of its scheduler, and nothing else does."""

    def __init__(self, info: WorkerInfo, cost: StepCost) -> None:
        self.info = info
        # As the worker has it; None: it has heard that there is none.
        self.wire: Wire | None = None
        self.draining = False
        # Its device neither ends a step nor looks for what it should do.
        self.hangs = False
        self._cost = cost
        self._memory = SimulatedMemory(info, caching=True, verify=True)
        self._worker: SimulatedWorker | None = None

    def attach(self, wire: Wire) -> list[Event]:
        """A scheduler's stream comes up. Returns what the worker says first, behind its hello."""
        self.forget()
        self.wire = wire
        self._worker = SimulatedWorker(wire.link, self.info, cost=self._cost)
        self._worker.memory, self._worker.pool = self._memory, self._memory.pool
        self._memory.pool.take_changes()
        events = self._worker.begin()
        if keys := self.keys:
            events.append(KvChanged(wire.link, False, (), tuple(sorted(keys))))
        return events

    def forget(self) -> None:
        """Drops what the scheduler of the last stream owned."""
        if self._worker is not None:
            for sequence in self._worker.sequences.values():
                self._memory.drop(sequence)
        self._memory.swapped.clear()
        self._worker = self.wire = None

    def receive(self, command: WorkerCommand) -> None:
        """It is read at the next boundary."""
        assert self._worker is not None
        self._worker.receive(command)

    @property
    def at_boundary(self) -> bool:
        """Whether it is between two steps and has something to read or to begin."""
        worker = self._worker
        return worker is not None and not worker.busy and bool(worker._mailbox or worker._plans)

    @property
    def in_step(self) -> bool:
        return self._worker is not None and self._worker.busy

    def step(self) -> list[Event]:
        """Begins a step, or ends the one that runs."""
        assert self._worker is not None
        return self._worker.finish() if self._worker.busy else self._worker.begin()

    @property
    def empty(self) -> bool:
        """Whether it has no sequence, none that waits for another one, and none on its way in."""
        return self._worker is None or (self._worker.empty and not self._worker.leaders)

    @property
    def counts(self) -> BlockCounts:
        return self._memory.pool.counts

    @property
    def keys(self) -> set[int]:
        """Of the blocks that can be found."""
        return self._memory.pool.keys

    def check(self) -> None:
        """Raises AssertionError if its pool does not add up."""
        problems = self._memory.pool.check()
        assert not problems, problems
