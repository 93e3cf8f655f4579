"""How many steps a plan has: as many as the worker has been left alone, within bounds of time.

Every number here is a count of steps or seconds; what the steps hold, this file does not know.
"""

from __future__ import annotations

import math

# Longer plans save nothing more: planning is then a thirtieth of what it would be with one step.
MAX_STEPS = 32
# Steps of a plan at least where their time is known: a plan of one needs another one sent with it, and whoever comes
# next would revoke both.
LEAST_STEPS = 2
# Seconds a plan should last at least: below that, making plans shows beside running them.
MIN_PLAN_SECONDS = 0.008
# Seconds a plan should last at most. It is revocable at every step, but until it ends its worst case is booked.
MAX_PLAN_SECONDS = 0.25


class PlanPace:
    """Steps a worker has run since something disturbed it: a start, an end, a preemption, a revocation."""

    __slots__ = ("quiet_steps",)
    quiet_steps: int

    def __init__(self) -> None:
        self.quiet_steps = 0

    def step_ran(self) -> None:
        self.quiet_steps += 1

    def disturb(self) -> None:
        self.quiet_steps = 0


def least_steps(step_seconds: float | None) -> int:
    """Steps below which planning would show; 1 while the time of a step is not known."""
    if step_seconds is None or step_seconds <= 0:
        return 1
    if step_seconds * MAX_STEPS <= MIN_PLAN_SECONDS:
        return MAX_STEPS
    return max(1, math.ceil(MIN_PLAN_SECONDS / step_seconds))


def choose_steps(quiet_steps: int, step_seconds: float | None) -> int:
    """The length of the next plan, before needs and credits bound it.

    As long as the quiet lasts, a plan is as long as all those reported before it, so that lengths grow like powers.
    `step_seconds` is what a step is predicted to take, None if that is not known.
    """
    steps = max(quiet_steps, least_steps(step_seconds))
    if step_seconds is None or step_seconds <= 0:
        return min(steps, MAX_STEPS)
    most = max(1, int(min(MAX_PLAN_SECONDS / step_seconds, MAX_STEPS)))
    return min(max(steps, LEAST_STEPS), most)
