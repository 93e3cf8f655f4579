"""What the plans in flight may do, and what they are expected to do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.window import Expected, PlanWindow


def test_plans_are_numbered_and_counted_until_they_are_done() -> None:
    window = PlanWindow()
    assert window.send(4, {1: 8}, revoke=False) == (1, 0)
    assert window.send(2, {}, revoke=False) == (2, 0)
    assert (len(window), window.plans_ahead, window.steps_ahead) == (2, 2, 6)
    assert window.step(1, 0)
    assert window.steps_worst(0) == 5
    assert window.steps_worst(2) == 2
    done = window.done(1, 1)
    assert done is not None
    assert done.steps_run == 1
    assert window.steps_ahead == 2


def test_the_oldest_plan_in_flight_is_named() -> None:
    window = PlanWindow()
    assert window.oldest_seq == 1
    window.send(4, {}, revoke=False)
    window.send(4, {}, revoke=False)
    assert window.oldest_seq == 1
    window.done(1, 0)
    assert window.oldest_seq == 2
    window.done(2, 0)
    assert window.oldest_seq == 3


def test_a_revoked_plan_counts_in_the_worst_case_until_its_end_is_reported() -> None:
    window = PlanWindow()
    window.send(4, {}, revoke=False)
    window.send(4, {}, revoke=False)
    assert window.send(1, {}, revoke=True) == (3, 2)
    assert (window.plans_ahead, window.steps_ahead, window.steps_worst(0)) == (1, 1, 9)
    window.done(2, 0)
    window.done(1, 0)
    assert window.steps_worst(0) == 1


def test_nothing_to_revoke_is_revoke_through_zero() -> None:
    assert PlanWindow().send(1, {}, revoke=True) == (1, 0)


def test_the_first_step_of_the_oldest_plan_is_expected_to_run_though_it_is_revoked() -> None:
    window = PlanWindow()
    window.send(4, {1: 8}, revoke=False)
    window.send(4, {2: 8}, revoke=False)
    assert window.expected(revoking=False) == [Expected(1, {1: 8}, 4), Expected(2, {2: 8}, 4)]
    assert window.expected(revoking=True) == [Expected(1, {1: 8}, 1)]
    window.send(1, {3: 8}, revoke=True)
    assert window.expected(revoking=False) == [Expected(1, {1: 8}, 1), Expected(3, {3: 8}, 1)]
    window.step(1, 0)
    assert window.expected(revoking=False) == [Expected(3, {3: 8}, 1)]
    # The second never had begun, whatever becomes the oldest in flight.
    window.done(1, 1)
    assert window.expected(revoking=False) == [Expected(3, {3: 8}, 1)]
    assert window.may_not_start(2, revoking=False)


def test_a_join_is_in_doubt_only_until_its_plan_is_known_to_run() -> None:
    window = PlanWindow()
    window.send(4, {}, revoke=False)
    assert not window.may_not_start(1, revoking=False)
    assert window.may_not_start(1, revoking=True)
    window.step(1, 0)
    assert not window.may_not_start(1, revoking=True)


def test_reports_that_no_plan_explains_are_told_apart() -> None:
    window = PlanWindow()
    window.send(2, {}, revoke=False)
    assert not window.step(2, 0)
    assert not window.step(1, 1)
    assert window.step(1, 0)
    assert not window.step(1, 0)
    assert window.step(1, 1)
    assert not window.step(1, 2)
    assert window.done(7, 0) is None
    assert window.done(1, 1) is None
    assert window.done(1, 2) is not None


@given(st.lists(st.tuples(st.sampled_from(["send", "revoke", "step", "done"]), st.integers(0, 3)), max_size=40))
def test_plans_ahead_are_those_with_steps_that_nothing_ends(moves: list[tuple[str, int]]) -> None:
    window = PlanWindow()
    for move, number in moves:
        plans = window._plans
        if move in ("send", "revoke"):
            window.send(1 + number, {}, revoke=move == "revoke")
        elif plans:
            plan = plans[number % len(plans)]
            if move == "done":
                window.done(plan.plan_seq, plan.steps_run)
            else:
                window.step(plan.plan_seq, plan.steps_run)
        assert window.plans_ahead == sum(not plan.revoked and plan.steps_left > 0 for plan in window._plans)
