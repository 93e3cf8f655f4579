"""The plans in flight to one worker: what may still run, and what is expected to run.

Two views matter. The *worst case* counts every step that may still run, revoked plans too, because a revocation takes
effect only when the worker reads it. The *expected* one is what most likely happens. Credits follow the first, order
the second: where the expectation fails, the next plan makes up for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Expected(NamedTuple):
    """Steps that a plan in flight is expected to run, and the chunks of its first one if that is among them."""

    plan_seq: int
    chunks: dict[int, int]
    num_steps: int


@dataclass(slots=True)
class FlyingPlan:
    """A plan whose end has not been reported. `chunks` maps sequences to tokens of the first step."""

    plan_seq: int
    num_steps: int
    chunks: dict[int, int]
    steps_run: int = 0
    revoked: bool = False
    # It was revoked when its first step had in all likelihood begun, but was not yet reported.
    begun: bool = False

    @property
    def steps_left(self) -> int:
        return self.num_steps - self.steps_run


class PlanWindow:
    """Plans in order of sending, numbered 1, 2, 3, ..."""

    _plans: list[FlyingPlan]
    _last_seq: int
    # Plans that were not revoked and have steps to run: counted as they change, since every event asks.
    plans_ahead: int

    def __init__(self) -> None:
        self._plans = []
        self._last_seq = self.plans_ahead = 0

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def oldest_seq(self) -> int:
        """The oldest plan in flight; without any, the next one to be sent."""
        return self._plans[0].plan_seq if self._plans else self._last_seq + 1

    @property
    def steps_ahead(self) -> int:
        """Steps before a plan that is sent now begins, if it revokes nothing."""
        return sum(plan.steps_left for plan in self._plans if not plan.revoked)

    def send(self, num_steps: int, chunks: dict[int, int], *, revoke: bool) -> tuple[int, int]:
        """Notes a new plan; returns (plan_seq, revoke_through). `revoke` ends all those before it."""
        through = self._last_seq if revoke and self._plans else 0
        if through:
            self._plans[0].begun |= not self._plans[0].revoked
            for plan in self._plans:
                plan.revoked = True
            self.plans_ahead = 0
        self._last_seq += 1
        self.plans_ahead += 1
        self._plans.append(FlyingPlan(self._last_seq, num_steps, chunks))
        return self._last_seq, through

    def step(self, plan_seq: int, step: int) -> bool:
        """A step ran. False if no such plan is in flight, or the step is not its next one."""
        for plan in self._plans:
            if plan.plan_seq == plan_seq:
                if step != plan.steps_run or not plan.steps_left:
                    return False
                plan.steps_run = step + 1
                if plan.steps_run == plan.num_steps and not plan.revoked:
                    self.plans_ahead -= 1
                return True
        return False

    def done(self, plan_seq: int, steps_run: int) -> FlyingPlan | None:
        """A plan ended. Returns it, None if it is not in flight or ran other steps than were reported. A revoked plan
        may end before one that still runs."""
        for plan in self._plans:
            if plan.plan_seq == plan_seq:
                if plan.steps_run != steps_run:
                    return None
                self._plans.remove(plan)
                if plan.steps_left and not plan.revoked:
                    self.plans_ahead -= 1
                return plan
        return None

    def steps_worst(self, since: int) -> int:
        """Most steps that plans numbered `since` and later may still run."""
        return sum(plan.steps_left for plan in self._plans if plan.plan_seq >= since)

    @property
    def prefill_ahead(self) -> int:
        """Most prefill tokens of a step that may be running."""
        return max((sum(plan.chunks.values()) for plan in self._plans if not plan.steps_run), default=0)

    def chunks_worst(self, sequence_id: int) -> int:
        """Most tokens of the sequence that first steps may still compute."""
        return sum(plan.chunks.get(sequence_id, 0) for plan in self._plans if not plan.steps_run)

    def expected(self, *, revoking: bool) -> list[Expected]:
        """What will run before the next plan; `revoking`: that plan ends all those in flight."""
        expected = []
        for index, plan in enumerate(self._plans):
            if not plan.revoked and not revoking:
                if plan.steps_left:
                    expected.append(Expected(plan.plan_seq, {} if plan.steps_run else plan.chunks, plan.steps_left))
            elif plan.steps_run == 0 and (plan.begun or (index == 0 and not plan.revoked)):
                # The worker has nothing before it: that step is running, and will not be broken off.
                expected.append(Expected(plan.plan_seq, plan.chunks, 1))
        return expected

    def may_not_start(self, plan_seq: int, *, revoking: bool) -> bool:
        """Whether the plan is revoked, or about to be if `revoking`, and no step of it is known to have run."""
        for plan in self._plans:
            if plan.plan_seq == plan_seq:
                return plan.steps_run == 0 and (plan.revoked or revoking)
        return False
