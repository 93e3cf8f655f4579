"""Drives the scheduler's core without processes: simulated workers, and a clock of its own that goes by steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.simulated_device import SameToken
from scheduler.actions import Action, NewSequence, Plan, ToGateway, TokenBatch, ToWorker
from scheduler.admission import QueueBounds
from scheduler.core import CoreSettings
from scheduler.events import Event, GatewayAttached, Submitted, WorkerAttached, WorkerInfo
from scheduler.plan_log.recorder import recorded_core
from scheduler.planner import Policy
from scheduler.simulator.cost import StepCost
from scheduler.simulator.small import submission
from scheduler.simulator.worker import SimulatedWorker

GATEWAY = 1
STEP_SECONDS = 0.01
_UNBOUNDED = QueueBounds(10**9, 10**12)


@dataclass(slots=True)
class PlanTimes:
    """Seconds that each call of `Core.plan` took that sent a plan, and of these on a core: the rest others had."""

    # Nobody new.
    steady: list[tuple[float, float]] = field(default_factory=list)
    # Somebody starts, where a plan in flight is revoked for it or none is.
    starting: list[tuple[float, float]] = field(default_factory=list)


class CoreDriver:
    """A core with its flight recorder, workers, and a gateway that only counts."""

    def __init__(self, infos: Sequence[WorkerInfo], *, plan_log_rounds: int, num_steps: int = 0) -> None:
        """`num_steps` as the setting scheduler.num_scheduler_steps."""
        addresses = tuple(f"host:{index + 1}" for index in range(len(infos)))
        settings = CoreSettings(addresses, Policy(num_steps, 0), _UNBOUNDED)
        self.core, self._recorder = recorded_core(settings, plan_log_rounds)
        self.times = PlanTimes()
        self.ended = 0
        self.now = 0.0
        self._last_key = 0
        cost = StepCost(STEP_SECONDS)
        self._workers = {
            link: SimulatedWorker(link, info, caching=False, verify=False, cost=cost, text=SameToken())
            for link, info in enumerate(infos, 1)
        }
        self._round([GatewayAttached(GATEWAY, "bench")])
        for link, worker in self._workers.items():
            self._round([WorkerAttached(link, addresses[link - 1], worker.info)])

    @property
    def outstanding(self) -> int:
        """Requests that have not ended."""
        return self._last_key - self.ended

    def submit(self, requests: Sequence[tuple[int, int]]) -> None:
        """Requests of (prompt tokens, output tokens), which arrive at once."""
        events: list[Event] = []
        for length, max_tokens in requests:
            self._last_key += 1
            events.append(Submitted(GATEWAY, submission(self._last_key, (7,) * length, max_tokens)))
        self._round(events)

    def step(self) -> None:
        """Every worker runs a step, if it can; each reports by itself, as on a real clock."""
        self.now += STEP_SECONDS
        for worker in self._workers.values():
            events = worker.begin()
            if worker.busy:
                events += worker.finish()
            if events:
                self._round(events)

    def _round(self, events: list[Event]) -> None:
        actions: list[Action] = [action for event in events for action in self.core.apply(event, self.now)]
        started, on_core = time.perf_counter(), time.thread_time()
        planned = self.core.plan(self.now)
        took = time.perf_counter() - started, time.thread_time() - on_core
        actions += planned
        if self._recorder is not None:
            self._recorder.note(self.now, events, actions)
        commands = {type(each.command) for each in planned if isinstance(each, ToWorker)}
        if Plan in commands:
            (self.times.starting if NewSequence in commands else self.times.steady).append(took)
        for action in actions:
            if isinstance(action, ToWorker):
                self._workers[action.link].receive(action.command)
            elif isinstance(action, ToGateway) and isinstance(action.message, TokenBatch):
                self.ended += len(action.message.ends)
