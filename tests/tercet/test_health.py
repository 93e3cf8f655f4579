"""What is made of looks: whether there is room, and whether something stands still."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tercet.health import (
    CALM_SECONDS,
    LOOK_SECONDS,
    PRESSED_SECONDS,
    Pressure,
    Stillness,
    high,
    look_at_room,
    passed_on,
    told,
)


def looked(refusals: list[int]) -> list[bool]:
    """Whether there was no room after each of looks a second apart that saw so many new refusals."""
    seen, count, pressure = [], 0, Pressure()
    for second, new in enumerate(refusals):
        count += new
        pressure = pressure.after(count, float(second))
        seen.append(pressure.high)
    return seen


def test_a_burst_is_no_want_of_room():
    assert not any(looked([0, 1000, 1000, 1000, 0, 0, 0, 0, 0, 0, 0, 0, 0]))


def test_refusals_that_go_on_are_and_so_for_a_while_afterwards():
    seen = looked([0, *[5] * 8, *[0] * 20])
    first = 1 + int(PRESSED_SECONDS)
    over = 8 + int(CALM_SECONDS)
    assert seen == [first <= second < over for second in range(29)]


def test_few_requests_of_which_each_is_refused_are_as_well():
    assert looked([1, 0, 0, 0, 1, 0, 0, 0, 1]) == [False] * 4 + [True] * 5


def test_refusals_far_apart_have_nothing_to_do_with_each_other():
    assert not any(looked([1, *[0] * int(CALM_SECONDS)] * 6))


@given(st.lists(st.integers(0, 2), max_size=80))
def test_room_does_not_come_and_go(refusals):
    seen = looked(refusals)
    changes = [second for second in range(1, len(seen)) if seen[second] != seen[second - 1]]
    for before, after in itertools.pairwise(changes):
        # Lost, it is not there again before it has been calm; found, it takes a while to be lost.
        assert after - before >= (CALM_SECONDS if seen[before] else PRESSED_SECONDS)
    for second, pressed in enumerate(seen):
        lately = refusals[max(0, second - int(CALM_SECONDS) + 1) : second + 1]
        assert any(lately) or not pressed


def test_each_kind_has_a_pressure_of_its_own():
    pressures: dict[str, Pressure] = {}
    for second in range(6):
        pressures = look_at_room(pressures, {"batch": second, "rag": 0}, float(second))
    assert high(pressures) == ("batch",)


def test_who_has_nothing_to_do_does_not_stand_still():
    still = Stillness()
    for second in range(100):
        still = still.after(7, False, float(second))
    assert still.still_s == 0.0


@given(st.lists(st.tuples(st.integers(0, 1), st.booleans()), min_size=1, max_size=60))
def test_who_stands_still_is_told_by_the_time_since_it_moved(looks):
    still, count, moved = Stillness(), 0, 0
    for second, (steps, busy) in enumerate(looks):
        count += steps
        if steps or not busy or second == 0:
            moved = second
        still = still.after(count, busy, float(second))
        assert still.still_s == second - moved


def test_time_in_which_nobody_looked_is_not_held_against_it():
    still = Stillness().after(3, True, 0.0).after(3, True, 1.0).after(3, True, 500.0)
    assert still.still_s <= 1.0 + 2 * LOOK_SECONDS


def test_words():
    assert told((True, "a"), (False, "b"), (True, "c")) == ("a", "c")
    assert passed_on("scheduler", ("a", "c")) == ("scheduler: a", "scheduler: c")
