"""Plans in their order, and the steps that they have left."""

from __future__ import annotations

from worker.messages import BlockCounts, Chunk, Plan, PlanDone
from worker.plan_queue import PlanQueue

COUNTS = BlockCounts(3, 2, 1)


def test_plans_that_only_go_on_are_steps_alike() -> None:
    plans = PlanQueue()
    assert plans.behind is None
    for plan in (Plan(1, 4, (Chunk(1, 5),)), Plan(2, 6), Plan(3, 7), Plan(4, 8, join=(1,)), Plan(5, 9)):
        plans.append(plan)
    assert plans.num_steps_alike == 17
    assert plans.behind == (Plan(2, 6), 13)
    plans.note_step(30)
    plans.note_step(40)
    assert (plans.step, plans.num_steps_alike) == (2, 15)
    assert not plans.has_run
    assert plans.finish(COUNTS, revoked=True) == PlanDone(1, 2, True, COUNTS, (30, 40))
    assert (plans.head.plan_seq, plans.step, plans.num_steps_alike) == (2, 0, 13)


def test_a_plan_revokes_those_it_names() -> None:
    plans = PlanQueue()
    newer = Plan(9, 1, revoke_through=2)
    assert not plans.is_revoked_by(newer)
    for plan_seq in (1, 2, 3):
        plans.append(Plan(plan_seq, 1))
    assert not plans.are_revoked_by(newer)
    assert plans.are_revoked_by(Plan(9, 1, revoke_through=3))
    ended = []
    while plans.is_revoked_by(newer):
        ended.append(plans.finish(COUNTS, revoked=True).plan_seq)
    assert (ended, plans.head.plan_seq, len(plans)) == ([1, 2], 3, 1)
    plans.note_step(5)
    assert plans.has_run
    plans.clear()
    assert (len(plans), plans.step) == (0, 0)
