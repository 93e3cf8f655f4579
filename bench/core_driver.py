"""Drives the scheduler's core without processes: simulated workers, and a clock of its own that goes by steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.simulated_device import SameToken
from scheduler.actions import Action, NewSequence, Plan, Refused, ToGateway, TokenBatch, ToWorker
from scheduler.admission import AdmissionMode, QueueBounds
from scheduler.core_settings import CoreSettings
from scheduler.events import Event, GatewayAttached, Submitted, TenantsChanged, WorkerAttached, WorkerInfo
from scheduler.plan_log.checkpoint import Snapshot
from scheduler.plan_log.recorder import recorded_core
from scheduler.policy import Policy
from scheduler.simulator.cost import StepCost
from scheduler.simulator.small import submission
from scheduler.simulator.worker import SimulatedWorker
from scheduler.tenant import NamedPlan

GATEWAY = 1
STEP_SECONDS = 0.01
_UNBOUNDED = QueueBounds(10**9, 10**12)


class Took(NamedTuple):
    """Seconds, and of these on a core: the rest others had."""

    wall: float
    on_core: float


class RoundTime(NamedTuple):
    """What a round of the scheduler's loop took, but for its messages."""

    apply: Took
    plan: Took
    record: Took

    @property
    def whole(self) -> Took:
        return Took(sum(part.wall for part in self), sum(part.on_core for part in self))


@dataclass(slots=True)
class RoundTimes:
    """Rounds by what came out of them."""

    # Plans, and nobody new.
    steady: list[RoundTime] = field(default_factory=list)
    # Somebody starts, where a plan in flight is revoked for it or none is.
    starting: list[RoundTime] = field(default_factory=list)
    # No plan.
    other: list[RoundTime] = field(default_factory=list)

    def clear(self) -> None:
        """Forgets what was measured."""
        for rounds in (self.steady, self.starting, self.other):
            rounds.clear()


class CoreDriver:
    """A core with its flight recorder, workers, and a gateway that only counts."""

    def __init__(
        self,
        infos: Sequence[WorkerInfo],
        *,
        plan_log_rounds: int,
        num_steps: int = 0,
        bounds: QueueBounds = _UNBOUNDED,
        tenants: int = 1,
        timed: bool = True,
    ) -> None:
        """`num_steps` as the setting scheduler.num_scheduler_steps. Requests come from so many `tenants` in turns.
        Without `timed` no `times` are kept, for who looks at memory: they are most of what grows here."""
        addresses = tuple(f"host:{index + 1}" for index in range(len(infos)))
        # Forecasts are made, and nothing is refused for them.
        mode = AdmissionMode.SHADOW
        settings = CoreSettings(addresses, Policy(num_steps, 0), bounds, admission_mode=mode)
        self.core, self._recorder = recorded_core(settings, plan_log_rounds)
        self.times = RoundTimes()
        self._timed = timed
        self.ended = 0
        self.now = 0.0
        self._last_key = 0
        self._tenants = [f"tenant-{index}" for index in range(tenants)] if tenants > 1 else [""]
        cost = StepCost(STEP_SECONDS)
        self._workers = {
            link: SimulatedWorker(link, info, caching=False, verify=False, cost=cost, text=SameToken())
            for link, info in enumerate(infos, 1)
        }
        self._round([GatewayAttached(GATEWAY, "bench")])
        if tenants > 1:
            self._round([TenantsChanged(GATEWAY, 1, tuple(map(NamedPlan, self._tenants)))])
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
            tenant = self._tenants[self._last_key % len(self._tenants)]
            asked = submission(self._last_key, (7,) * length, max_tokens, tenant=tenant)
            events.append(Submitted(GATEWAY, asked))
        self._round(events)

    def refuse(self, length: int) -> Took:
        """What it takes to say no to a prompt of so many tokens, where no more may wait."""
        event = Submitted(GATEWAY, submission(0, (7,) * length))
        clock = Stopwatch()
        *_, answer, _ = self.core.apply(event, self.now)
        clock.lap()
        assert isinstance(answer, ToGateway)
        assert isinstance(answer.message, Refused)
        return clock.laps[0]

    def step(self) -> None:
        """Every worker runs a step, if it can; each reports by itself, as on a real clock."""
        self.now += STEP_SECONDS
        for worker in self._workers.values():
            events = worker.begin()
            if worker.busy:
                events += worker.finish()
            if events:
                self._round(events)

    def checkpoint(self) -> Took:
        """What one of the recorder's checkpoints takes now."""
        clock = Stopwatch()
        checkpoint = Snapshot(self.core)
        clock.lap()
        # To free it takes long, too, and is done elsewhere.
        del checkpoint
        return clock.laps[0]

    def _round(self, events: list[Event]) -> None:
        clock = Stopwatch()
        actions: list[Action] = [action for event in events for action in self.core.apply(event, self.now)]
        clock.lap()
        planned = self.core.plan(self.now)
        clock.lap()
        actions += planned
        if self._recorder is not None:
            self._recorder.note(self.now, events, actions)
        clock.lap()
        if self._timed:
            self._keep_time(planned, RoundTime(*clock.laps))
        for action in actions:
            if isinstance(action, ToWorker):
                self._workers[action.link].receive(action.command)
            elif isinstance(action, ToGateway) and isinstance(action.message, TokenBatch):
                self.ended += len(action.message.ends)

    def _keep_time(self, planned: Sequence[Action], took: RoundTime) -> None:
        commands = {type(each.command) for each in planned if isinstance(each, ToWorker)}
        if Plan not in commands:
            self.times.other.append(took)
        else:
            (self.times.starting if NewSequence in commands else self.times.steady).append(took)


class Stopwatch:
    """Seconds of one thing after the other, on the wall and on a core."""

    def __init__(self) -> None:
        self.laps: list[Took] = []
        self._wall, self._on_core = time.perf_counter(), time.thread_time()

    def lap(self) -> None:
        """One thing is done."""
        wall, on_core = time.perf_counter(), time.thread_time()
        self.laps.append(Took(wall - self._wall, on_core - self._on_core))
        self._wall, self._on_core = wall, on_core
