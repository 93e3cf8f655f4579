"""How long plans are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.plan_length import (
    MAX_PLAN_SECONDS,
    MAX_STEPS,
    MIN_PLAN_SECONDS,
    PlanPace,
    choose_steps,
    least_steps,
)


def test_quiet_steps_count_from_the_last_disturbance() -> None:
    pace = PlanPace()
    for _ in range(5):
        pace.step_ran()
    assert pace.quiet_steps == 5
    pace.disturb()
    pace.step_ran()
    assert pace.quiet_steps == 1


def test_the_length_doubles_while_nothing_happens() -> None:
    pace = PlanPace()
    lengths = []
    for _ in range(7):
        steps = choose_steps(pace.quiet_steps, 0.005)
        lengths.append(steps)
        for _ in range(steps):
            pace.step_ran()
    assert lengths == [2, 2, 4, 8, 16, 32, 32]


def test_short_steps_make_plans_that_are_worth_making() -> None:
    assert least_steps(0.002) == 4
    assert least_steps(0.02) == 1
    assert least_steps(0.00001) == MAX_STEPS
    assert choose_steps(0, 0.002) == 4


def test_a_plan_has_two_steps_where_one_would_need_another_plan_beside_it() -> None:
    assert [choose_steps(quiet, 0.012) for quiet in (0, 1, 2, 3)] == [2, 2, 2, 3]
    # Not beyond an end that is certain.
    assert least_steps(0.012) == 1


def test_long_steps_make_short_plans() -> None:
    assert choose_steps(100, 0.05) == 5
    assert choose_steps(100, 3.0) == 1


def test_without_a_forecast_only_the_quiet_counts() -> None:
    assert [choose_steps(quiet, None) for quiet in (0, 1, 9, 99)] == [1, 1, 9, MAX_STEPS]


@given(st.integers(0, 10**6), st.one_of(st.none(), st.floats(0, 100)))
def test_every_length_is_within_bounds(quiet: int, step_seconds: float | None) -> None:
    steps = choose_steps(quiet, step_seconds)
    assert 1 <= steps <= MAX_STEPS
    if step_seconds and steps > 1:
        assert steps * step_seconds <= MAX_PLAN_SECONDS
        assert steps <= max(quiet, least_steps(step_seconds))
    if step_seconds and steps < MAX_STEPS and step_seconds < MAX_PLAN_SECONDS / 2:
        assert steps * step_seconds >= MIN_PLAN_SECONDS or steps >= int(MAX_PLAN_SECONDS / step_seconds)
