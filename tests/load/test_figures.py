"""Percentiles and spreads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.load.figures import gaps, percentile, spread


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(1, 101)]
    assert percentile(values, 50) == 50
    assert percentile(values, 99) == 99
    assert percentile(values, 100) == 100
    assert percentile([3.0], 1) == 3.0
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 50)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0.1, 100))
def test_so_many_percent_do_not_exceed_it(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100 - 1e-6
    assert sum(value < found for value in values) < len(values) * percent / 100 + 1e-6


def test_a_spread_has_the_percentiles() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    found = spread(values)
    assert found is not None
    assert (found.count, found.mean, found.max) == (5, 3.0, 5.0)
    assert (found.p50, found.p95, found.p99) == tuple(percentile(values, each) for each in (50, 95, 99))
    assert spread([]) is None


def test_gaps_lie_between_moments() -> None:
    assert gaps([1.0, 1.5, 4.0]) == [0.5, 2.5]
    assert gaps([1.0]) == []
