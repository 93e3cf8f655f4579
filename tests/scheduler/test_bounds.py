"""When a class or a tenant that is full has room for one more."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.bounds import Bound, Runs
from scheduler.output_length import LeaveRate, LeaveRates

RATES = st.builds(LeaveRate, st.floats(0.0, 1.0), st.floats(1e-4, 1.0))


NOBODY = Runs(0, LeaveRate(0.1, 0.1))


def bound(
    free: float, wanted: float, waiting: float = 0.0, freed: float = 1.0, start: Runs = NOBODY,
    **running: tuple[int, float],
) -> Bound:  # fmt: skip
    runs = {int(link[1:]): Runs(count, LeaveRate(rate, rate)) for link, (count, rate) in running.items()}
    return Bound(free, wanted, freed, waiting, runs, start)


def test_there_is_room() -> None:
    assert bound(3, 3, waiting=2, _1=(4, 0.1)).seconds({1: 0.01}, 0.0) == 0.0


def test_one_may_always_run() -> None:
    assert bound(2, 4).seconds({1: 0.01}, 0.0) == 0.0
    # Of what is larger than the bound when all have left.
    assert bound(0, 10, waiting=1, _1=(2, 0.1)).ends == 3


def test_ends_come_from_all_workers_as_fast_as_their_steps_are() -> None:
    # Forty ends in a second here, ten there.
    full = bound(0, 25, waiting=24, _1=(4, 0.1), _2=(10, 0.02))
    assert full.seconds({1: 0.01, 2: 0.02}, 0.0) == pytest.approx(0.5)
    # One that comes has its prompt to compute before it may end: fifty a second are twenty then.
    assert full.seconds({1: 0.01, 2: 0.02}, 0.15) > 0.5
    # Each end gives back less than a newcomer takes.
    assert bound(0, 300, waiting=30, freed=20, _1=(4, 0.1)).seconds({1: 0.01}, 0.0) == pytest.approx(15 / 40)


def test_those_that_begin_now_end_later() -> None:
    young, old = (Bound(0, 1, 1.0, 0.0, {1: Runs(8, LeaveRate(now, 0.01))}, NOBODY) for now in (0.0, 0.05))
    assert old.seconds({1: 0.01}, 0.0) < 0.03 < 0.2 < young.seconds({1: 0.01}, 0.0)


def test_those_who_wait_start_at_once_where_there_are_places() -> None:
    start = Runs(4, LeaveRate(0.01, 0.01))
    full = bound(4, 8, waiting=7, start=start)
    assert full.ends == 4
    assert full.seconds({1: 0.01}, 0.0) == pytest.approx(1.0)
    # Half of the places are free.
    assert bound(2, 6, waiting=5, start=Runs(2, LeaveRate(0.01, 0.01)), _1=(2, 0.01)).seconds(
        {1: 0.01}, 0.0
    ) == pytest.approx(1.0)


def test_as_it_is_when_places_are_left_by_chance() -> None:
    """Each place is left with a chance of 1 in 50 in a step, whoever has it."""
    rng, places, ends = random.Random(1), 5, 20
    seconds = []
    for _ in range(300):
        left = steps = 0
        while left < ends:
            steps += 1
            left += sum(rng.random() < 0.02 for _ in range(places))
        seconds.append(0.01 * steps)
    full = bound(0, ends, waiting=ends - 1, _1=(places, 0.02))
    assert full.seconds({1: 0.01}, 0.0) == pytest.approx(sum(seconds) / len(seconds), rel=0.05)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 256), RATES, st.floats(1e-6, 10.0)), min_size=1, max_size=4),
       st.integers(1, 300), st.floats(0.0, 10.0))  # fmt: skip
def test_the_more_wait_the_longer_and_never_for_ever(
    workers: list[tuple[int, LeaveRate, float]], wanted: int, prompt_s: float
) -> None:
    running = {link: Runs(count, leaving) for link, (count, leaving, _) in enumerate(workers)}
    step_s = {link: each for link, (_, _, each) in enumerate(workers)}
    waits = [
        Bound(0, each, 1.0, each - 1, running, NOBODY).seconds(step_s, prompt_s)
        for each in (wanted, wanted + 1, 2 * wanted)
    ]
    assert 0.0 < waits[0] <= waits[1] <= waits[2] < float("inf")


def test_leave_rates_of_a_class_and_of_several() -> None:
    rates = LeaveRates(5, 4, LeaveRate(0.2, 0.02), {"chat": LeaveRate(0.3, 0.03), "rag": LeaveRate(0.1, 0.01)})
    assert rates.of("chat") == LeaveRate(0.3, 0.03)
    # None of it ran at that time.
    assert rates.of("batch") == LeaveRate(0.2, 0.02)
    assert rates.mixed({"chat": 3, "rag": 1}) == pytest.approx(LeaveRate(0.25, 0.025))
