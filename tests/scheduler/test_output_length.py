"""How soon running outputs leave, against outputs of known lengths."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.output_length import MEMORY_OUTPUTS, OutputLengths

MOST = 4096.0


def learned(lengths: list[int]) -> OutputLengths:
    outputs = OutputLengths()
    for length in lengths:
        outputs.ended(length)
    return outputs


@pytest.mark.parametrize("mean", [10, 60, 150, 700])
def test_a_steady_stream_leaves_as_fast_as_its_outputs_are_long(mean: int) -> None:
    rng = random.Random(1)
    outputs = learned([1 + int(rng.expovariate(1 / mean)) for _ in range(400)])
    leaving = outputs.leaving([int(rng.expovariate(1 / mean)) for _ in range(50)], MOST)
    assert 1 / leaving.later == pytest.approx(mean, rel=0.2)
    assert 1 / leaving.now == pytest.approx(mean, rel=0.4)


def test_outputs_of_one_length_stay_until_they_have_it() -> None:
    outputs = learned([150] * 100)
    assert outputs.leaving([20] * 8, MOST).now < 1 / 500
    assert outputs.leaving([140] * 8, MOST).now > 1 / 50
    assert 1 / outputs.leaving([20] * 8, MOST).later == pytest.approx(150, rel=0.1)


def test_the_first_that_end_do_not_stand_for_those_that_go_on() -> None:
    """The shortest end first: those that run are known to be longer."""
    outputs = learned([5, 6, 7])
    alone, among_many = outputs.leaving([30], MOST), outputs.leaving([30] * 60, MOST)
    assert 1 / among_many.later > 2 / alone.later
    assert 1 / among_many.later > 30


def test_nothing_stays_longer_than_it_may() -> None:
    assert 1 / learned([]).leaving([0], 40.0).later <= 40.0
    assert 1 / learned([2000] * 50).leaving([10], 300.0).later <= 300.0


def test_lengths_that_change_are_learned_anew() -> None:
    outputs = learned([1000] * MEMORY_OUTPUTS * 2 + [20] * MEMORY_OUTPUTS * 8)
    assert 1 / outputs.leaving([5] * 4, MOST).later < 100


def test_those_whose_ends_are_known_do_not_leave_by_chance_and_count_as_what_they_are() -> None:
    outputs = learned([20] * 50)
    assert outputs.leaving([], MOST, [19] * 4).now == 0.0
    half = outputs.leaving([19] * 4, MOST, [19] * 4)
    assert half.now == pytest.approx(outputs.leaving([19] * 8, MOST).now / 2)
    assert half.later == outputs.leaving([19] * 8, MOST).later
    assert 1 / outputs.leaving([], MOST, [900] * 50).later > 2 / outputs.leaving([19], MOST).later


def test_what_is_to_go_is_what_followed_where_others_were_so_long() -> None:
    rng = random.Random(2)
    assert learned([1 + int(rng.expovariate(1 / 60)) for _ in range(400)]).to_go(50) == pytest.approx(60, rel=0.3)
    # As long again, where none has been.
    assert learned([20] * 50).to_go(1000) >= 350


@given(
    ended=st.lists(st.integers(0, 100_000), max_size=50),
    running=st.lists(st.integers(0, 100_000), min_size=1, max_size=50),
    most=st.floats(1.0, 100_000.0),
)
def test_a_chance_is_always_one(ended: list[int], running: list[int], most: float) -> None:
    now, later = learned(ended).leaving(running, most)
    assert 0.0 < now <= 1.0
    assert 1.0 / most <= later * 1.0000001
    assert later <= 1.0
