"""Workers whose sequences all wait for something of their own, such as masks: they report steps of nothing."""

from __future__ import annotations

from collections import deque

import pytest
from core_door import Door

from scheduler.actions import Action, DropWorker, NewSequence, Plan, ToWorker
from scheduler.events import BlockCounts, PlanEnded, StepReported, TimePassed
from scheduler.progress import HUNG_SECONDS, HUNG_TIMES, Progress

# As worker/executor.py.
HOLD_S = 0.02


class Waiter(Door):
    """Its worker computes nothing, and ends each plan after a while with a step of nothing."""

    def __init__(self, num_steps: int) -> None:
        self.plans: deque[Plan] = deque()
        self.placed: list[int] = []
        self.joined: set[int] = set()
        super().__init__(num_steps=num_steps)

    def handle(self, event: object) -> list[Action]:
        actions = super().handle(event)
        assert not any(isinstance(action, DropWorker) for action in actions)
        for action in actions:
            if isinstance(action, ToWorker) and isinstance(action.command, Plan):
                self.plans.append(action.command)
                self.joined.update(action.command.join)
            elif isinstance(action, ToWorker) and isinstance(action.command, NewSequence):
                self.placed.append(action.command.sequence_id)
        return actions

    def wait(self) -> None:
        """The plan at the head ends, and with it those that it revoked."""
        self.now += HOLD_S
        self.handle(TimePassed())
        blocks = BlockCounts(self.core.workers[0].info.num_blocks, 0, 0)
        while any(later.revoke_through >= self.plans[0].plan_seq for later in self.plans):
            self.handle(PlanEnded(1, self.plans.popleft().plan_seq, 0, True, blocks))
        plan = self.plans.popleft()
        self.handle(StepReported(1, plan.plan_seq, 0, (), (), (), (), blocks, step_us=0))
        self.handle(PlanEnded(1, plan.plan_seq, 1, False, blocks))


@pytest.mark.parametrize("num_steps", [0, 1])
def test_a_worker_that_waits_is_neither_late_nor_hung_and_gets_who_comes(num_steps: int) -> None:
    door = Waiter(num_steps)
    first = [door.accept() for _ in range(2)]
    (worker,) = door.core.workers
    while door.now < 2 * HUNG_SECONDS * max(HUNG_TIMES.values()):
        door.wait()
        assert worker.progress is Progress.MOVING
        assert door.plans
    assert len(door.placed) == len(first)
    door.accept()
    # At the latest when the next plan ends, however short those are that it has.
    door.wait()
    assert len(door.placed) == 3
    assert door.joined == set(door.placed)
    assert not any(log.event.startswith("worker_late") for log in door.logs)
    assert worker.step_times.predict(1, 0) is None
