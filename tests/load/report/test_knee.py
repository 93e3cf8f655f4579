"""The knee of curves whose knee is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.load.report.knee import knee, largest_kept


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.9), (0.0, 0.95), (0.3, 0.99)])
def test_of_a_queue(low: float, high: float) -> None:
    loads = np.linspace(low, high, 2_001)
    found = knee(loads.tolist(), (1 / (1 - loads)).tolist())
    assert found == pytest.approx(1 - math.sqrt((1 - low) * (1 - high)), abs=(high - low) / 2_000)


def test_where_latency_begins_to_rise() -> None:
    assert knee([1, 2, 3, 4, 5, 6], [100, 100, 101, 102, 900, 2_000]) == 4


def test_order_units_and_repetition_of_loads_do_not_matter() -> None:
    loads, latencies = [1, 2, 4, 8, 16], [10, 11, 12, 15, 400]
    assert knee(loads, latencies) == 8
    assert knee(loads[::-1], latencies[::-1]) == 8
    assert knee([1_000 * load for load in loads], [1e-3 * each for each in latencies]) == 8_000
    # One of three that went wrong is no knee.
    assert knee([*loads, 2, 2, 16], [*latencies, 11, 900, 400]) == 8


def test_a_load_with_luck_is_not_a_way_back() -> None:
    assert knee([1, 2, 3, 4, 5], [100, 140, 90, 150, 1_000]) == 4


@pytest.mark.parametrize(
    ("loads", "latencies"),
    [
        ([], []),
        ([1], [5]),
        ([1, 2], [5, 50]),
        ([1, 1, 2], [5, 6, 50]),
        ([1, 2, 3, 4], [10, 11, 10, 12]),
        ([1, 2, 3, 4], [10, 20, 30, 40]),
        ([1, 2, 3, 4], [10, 80, 90, 95]),
        ([1, 2, 3], [0, 0, 0]),
        ([1, 2, 3], [50, 20, 5]),
    ],
    ids=["nothing", "one", "two", "two twice", "noise", "straight", "bends down", "zero", "falls"],
)
def test_none(loads: list[float], latencies: list[float]) -> None:
    assert knee(loads, latencies) is None


POINTS = st.lists(st.tuples(st.floats(0.1, 1e3), st.floats(0, 1e6)), max_size=12)


@given(POINTS)
def test_it_is_a_load_that_was_measured(points: list[tuple[float, float]]) -> None:
    loads, latencies = [load for load, _ in points], [latency for _, latency in points]
    found = knee(loads, latencies)
    assert found is None or min(loads) < found < max(loads)
    assert found is None or found in loads


def test_how_far_a_promise_is_kept() -> None:
    assert largest_kept([4, 1, 2, 3], [0.2, 1.0, 0.99, 0.96], 0.95) == 3
    # What is kept again beyond a load at which it was not is luck.
    assert largest_kept([1, 2, 3], [0.99, 0.5, 0.99], 0.95) == 1
    assert largest_kept([1, 2], [0.5, 0.99], 0.95) is None
    assert largest_kept([2, 2], [0.99, 0.5], 0.95) is None
    assert largest_kept([], [], 0.95) is None
