"""Durations by size: figures stay within half a percent of the exact ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.load.figures import spread
from tercet.load.tally import Tally

DURATIONS = st.lists(st.floats(0.002, 1e6), min_size=1, max_size=200)


def tally_of(values: list[float]) -> Tally:
    tally = Tally()
    for value in values:
        tally.add(value)
    return tally


@settings(max_examples=60)
@given(DURATIONS)
def test_figures_are_those_of_the_values(values: list[float]) -> None:
    found, exact = tally_of(values).spread(), spread(values)
    assert found is not None
    assert exact is not None
    assert (found.count, found.max) == (exact.count, exact.max)
    assert found.mean == pytest.approx(exact.mean)
    for name in ("p50", "p95", "p99"):
        assert getattr(found, name) == pytest.approx(getattr(exact, name), rel=0.005)


@settings(max_examples=30)
@given(DURATIONS, DURATIONS)
def test_two_merged_are_one_of_all(some: list[float], others: list[float]) -> None:
    merged, whole = tally_of(some), tally_of(some + others)
    merged.merge(tally_of(others))
    assert merged.pairs() == whole.pairs()
    assert sum(count for _, count in merged.pairs()) == len(some) + len(others)


def test_nothing_and_next_to_nothing() -> None:
    assert Tally().spread() is None
    none = tally_of([0.0, 0.0]).spread()
    assert none is not None
    assert (none.p50, none.p99, none.mean, none.max) == (0.0, 0.0, 0.0, 0.0)
