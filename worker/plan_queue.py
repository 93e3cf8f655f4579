"""The plans that a worker has, in their order, and how far the one at the head has come. Knows no sequences."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Collection, Iterator
from itertools import islice, takewhile

from .messages import BlockCounts, Plan, PlanDone


class PlanQueue:
    """True while there are plans. Unless said otherwise, for the plan at the head: there must be one."""

    def __init__(self) -> None:
        self._plans: deque[Plan] = deque()
        self._step_us: list[int] = []  # of the steps that the head has run

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def head(self) -> Plan:
        """The plan that runs."""
        return self._plans[0]

    @property
    def step(self) -> int:
        """The number of its next step."""
        return len(self._step_us)

    @property
    def has_run(self) -> bool:
        """Whether all its steps have run."""
        return self.step >= self.head.num_steps

    @property
    def num_steps_alike(self) -> int:
        """Steps that it has left, and those of the plans behind it that only go on with what it does."""
        return self._num_steps_alike(0) - self.step

    @property
    def behind(self) -> tuple[Plan, int] | None:
        """The plan that comes next, if there is one, and its steps, counted in the same way."""
        return (self._plans[1], self._num_steps_alike(1)) if len(self._plans) > 1 else None

    @property
    def later(self) -> Iterator[Plan]:
        """All plans behind it."""
        return islice(self._plans, 1, None)

    def _num_steps_alike(self, index: int) -> int:
        behind = takewhile(lambda plan: plan.goes_on, islice(self._plans, index + 1, None))
        return self._plans[index].num_steps + sum(plan.num_steps for plan in behind)

    def are_revoked_by(self, plan: Plan) -> bool:
        """Whether all must end for `plan`."""
        return all(each.plan_seq <= plan.revoke_through for each in self._plans)

    def is_revoked_by(self, plan: Plan) -> bool:
        """Whether the head, if there is one, must end for `plan`."""
        return bool(self._plans) and self.head.plan_seq <= plan.revoke_through

    def append(self, plan: Plan) -> None:
        """Takes a plan, to run after those that are there."""
        self._plans.append(plan)

    def leave_out(self, sequence_ids: Collection[int]) -> None:
        """Takes sequences out of what all plans join."""
        for index, plan in enumerate(self._plans):
            if not plan.goes_on and not set(plan.join).isdisjoint(sequence_ids):
                join = tuple(each for each in plan.join if each not in sequence_ids)
                self._plans[index] = dataclasses.replace(plan, join=join)

    def note_step(self, step_us: int) -> None:
        """It has run a step."""
        self._step_us.append(step_us)

    def finish(self, counts: BlockCounts, *, revoked: bool) -> PlanDone:
        """It ends; what is to be told of it."""
        plan, step_us = self._plans.popleft(), tuple(self._step_us)
        self._step_us = []
        return PlanDone(plan.plan_seq, len(step_us), revoked, counts, step_us)

    def clear(self) -> None:
        """Forgets all plans."""
        self._plans.clear()
        self._step_us = []
