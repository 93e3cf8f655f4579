"""Prompts wait for first tokens that are owed for a few steps, and then one does not let them."""

from __future__ import annotations

from scheduler.owed_waits import MOST_WAITS, OwedWaits


def test_they_wait_so_many_steps_in_a_row_and_no_more() -> None:
    waits = OwedWaits()
    for step in range(5, 5 + MOST_WAITS):
        assert not waits.over(step)
        waits.note(step)
    assert waits.over(5 + MOST_WAITS)
    # One step that did not let them is enough.
    assert not waits.over(6 + MOST_WAITS)
    waits.note(6 + MOST_WAITS)
    assert not waits.over(7 + MOST_WAITS)


def test_a_plan_in_place_of_another_is_no_second_wait() -> None:
    waits = OwedWaits()
    for step in range(MOST_WAITS):
        for _ in range(4):
            assert not waits.over(step)
            waits.note(step)
    assert waits.over(MOST_WAITS)
