"""A device whose steps take the time they are said to take: the simulated worker of the scheduler's tests, on a clock.

The thread that owns it sleeps where a real one computes. What it does between two steps costs the device nothing, as
when a host prepares a step while the device runs: only waiting for a plan is lost.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scheduler.actions import NewSequence, Plan, WorkerCommand
from scheduler.events import Event
from scheduler.simulator.worker import SimulatedWorker

# A step that is handled so many seconds after it should have ended is late: the host was busy elsewhere.
LATE_S = 0.001
# Any token that has text will do; those of the first few dozen places are mostly special ones, which have none.
TOKEN = 100


class SameToken:
    """Text of one token, which no sequence pays for."""

    def next_token(self, _token_ids: Sequence[int], _seed: int) -> int:
        return TOKEN


@dataclass(slots=True)
class Trace:
    """What the device did, in seconds on the host's monotonic clock."""

    # (begin, end) of every step; the end is when it should have ended.
    steps: list[tuple[float, float]] = field(default_factory=list)
    # Ends of steps that were handled late.
    late: list[float] = field(default_factory=list)
    # (from, to) while it had sequences and no plan.
    idle: list[tuple[float, float]] = field(default_factory=list)
    # Of plans that revoke: received, first step begins (as late as the host was), and the first sequence that came
    # with it, 0 for none.
    revocations: list[tuple[float, float, int]] = field(default_factory=list)


class SimulatedDevice:
    """Runs a simulated worker on a thread of its own. `emit` gets what happened, on that thread."""

    def __init__(self, worker: SimulatedWorker, emit: Callable[[list[Event]], None]) -> None:
        self.trace = Trace()
        self._worker = worker
        self._emit = emit
        self._mailbox: queue.SimpleQueue[tuple[float, list[WorkerCommand]] | None] = queue.SimpleQueue()
        # Of plans that revoke and have not begun: received, and the first sequence that came with it.
        self._revoking: list[tuple[float, int]] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, commands: list[WorkerCommand]) -> None:
        """What arrived in one message, for the next boundary."""
        self._mailbox.put((time.monotonic(), commands))

    def stop(self) -> None:
        """Returns when the thread has ended."""
        self._mailbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        worker, trace = self._worker, self.trace
        begin = time.monotonic()
        while not self._stopped:
            self._read(block=False)
            if self._stopped:
                # Nobody would say so again to one that waits for more.
                return
            events = worker.begin()
            if events:
                self._emit(events)
            if not worker.busy:
                waits, since = bool(worker.sequences), begin
                self._read(block=True)
                begin = time.monotonic()
                if waits:
                    trace.idle.append((since, begin))
                continue
            end = begin + worker.step_seconds
            if self._revoking:
                now = time.monotonic()
                trace.revocations += [(received, now, sequence_id) for received, sequence_id in self._revoking]
            self._revoking.clear()
            trace.steps.append((begin, end))
            left = end - time.monotonic()
            if left > 0:
                time.sleep(left)
            now = time.monotonic()
            if now - end > LATE_S:
                trace.late.append(end)
            self._emit(worker.finish())
            # The next one began when this one ended, if its plan was there.
            begin = end

    def _read(self, *, block: bool) -> None:
        try:
            while True:
                message = self._mailbox.get(block)
                block = False
                if message is None:
                    self._stopped = True
                    return
                received, commands = message
                newcomer = 0
                for command in commands:
                    self._worker.receive(command)
                    if isinstance(command, NewSequence):
                        newcomer = newcomer or command.sequence_id
                    elif isinstance(command, Plan) and command.revoke_through:
                        self._revoking.append((received, newcomer))
        except queue.Empty:
            return
