"""Percentiles and shares of time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.figures import overlap, percentile
from bench.plan_parts import in_turns


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


def test_only_what_lies_in_the_window_counts() -> None:
    spans = [(0.0, 2.0), (3.0, 4.0), (9.0, 12.0), (20.0, 30.0)]
    assert overlap(spans, 1.0, 10.0) == pytest.approx(1.0 + 1.0 + 1.0)
    assert overlap(spans, 12.0, 20.0) == 0.0


def test_turns_are_turned_round() -> None:
    assert in_turns("ab", 3) == ["a", "b", "b", "a", "a", "b"]
