"""What a promise asks of the next request: on histories that were made up."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.promise import LEAST_CHANCE, MOST_OWED, aim, booked, needed_chance
from scheduler.traffic_class import Target

TARGET = Target(1.0, 95.0)
targets = st.builds(Target, st.just(1.0), st.floats(50.0, 99.9))


def after(target: Target, spare: float, outcomes: list[bool]) -> float:
    """What is to spare after requests that were in time or not."""
    for in_time in outcomes:
        spare = booked(target, spare, in_time - aim(target))
    return spare


def test_a_little_more_than_is_promised_is_aimed_at() -> None:
    assert aim(TARGET) == pytest.approx(0.97)
    assert aim(Target(1.0, 50.0)) == pytest.approx(0.7)


@given(target=targets, spares=st.lists(st.floats(-100.0, 100.0), min_size=2, max_size=8))
def test_the_more_there_is_to_spare_the_less_is_needed(target: Target, spares: list[float]) -> None:
    needed = [needed_chance(target, spare) for spare in sorted(spares)]
    assert all(more >= less for more, less in pairwise(needed))
    assert all(LEAST_CHANCE <= each < 1.0 for each in needed)


@given(target=targets, met=st.lists(st.floats(-1.0, 1.0), max_size=300))
def test_accounts_have_bounds(target: Target, met: list[float]) -> None:
    spare = 0.0
    for each in met:
        spare = booked(target, spare, each)
        assert spare >= -MOST_OWED
        # Nothing is saved beyond what lets the least likely in.
        assert spare <= 0.0 or needed_chance(target, spare - 0.1) > LEAST_CHANCE


def test_requests_in_time_are_saved_up_and_misses_are_paid_for() -> None:
    good = after(TARGET, 0.0, [True] * 1000)
    assert needed_chance(TARGET, good) == pytest.approx(LEAST_CHANCE)
    one_late = after(TARGET, good, [False])
    assert LEAST_CHANCE < needed_chance(TARGET, one_late) < needed_chance(TARGET, 0.0)
    wave = after(TARGET, good, [False] * 60)
    assert needed_chance(TARGET, wave) > aim(TARGET)
    # It takes that many in time to pay for a miss.
    assert after(TARGET, wave, [True] * round(0.97 / 0.03)) == pytest.approx(wave + 0.97, abs=0.03)
    assert needed_chance(TARGET, after(TARGET, wave, [True] * 3000)) == pytest.approx(LEAST_CHANCE)


def test_a_likely_miss_that_is_booked_at_the_door_is_put_right_by_what_came() -> None:
    for in_time in (True, False):
        at_the_door = booked(TARGET, 0.0, 0.8 - aim(TARGET))
        settled = booked(TARGET, at_the_door, in_time - 0.8)
        assert settled == pytest.approx(after(TARGET, 0.0, [in_time]))


@pytest.mark.parametrize("boldness", [0.0, 0.25, 0.45])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_promise_is_kept_however_wrong_chances_are(boldness: float, seed: int) -> None:
    """Those of an overload: mostly unsure. What came of a request is known only sixty requests later."""
    rng = random.Random(seed)
    spare, waiting, in_time, let_in = 0.0, list[tuple[float, bool]](), 0, 0
    for _ in range(30_000):
        if len(waiting) > 60:
            chance, met = waiting.pop(0)
            spare = booked(TARGET, spare, met - chance)
        chance = 1.0 - rng.random() ** 3
        if chance < needed_chance(TARGET, spare):
            continue
        spare = booked(TARGET, spare, chance - aim(TARGET))
        # Misses are likelier than it says.
        met = rng.random() < 1.0 - (1.0 - chance) ** (1.0 - boldness)
        waiting.append((chance, met))
        let_in += 1
        in_time += met
    assert let_in > 3000
    assert 0.95 < in_time / let_in < 0.985
