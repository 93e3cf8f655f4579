"""Quantiles of a histogram are those of what went into it, to within a bucket."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.histogram import BUCKETS_PER_OCTAVE, LAST_BUCKET, LONGEST_SECONDS, SHORTEST_SECONDS, Histogram

GROWTH = 2 ** (1 / BUCKETS_PER_OCTAVE)
durations = st.lists(st.floats(0, 10 * LONGEST_SECONDS), min_size=1, max_size=60)


def filled(seconds: list[float]) -> Histogram:
    histogram = Histogram()
    for each in seconds:
        histogram.add(each)
    return histogram


@given(durations, st.floats(0, 1))
def test_a_quantile_is_never_below_and_at_most_a_bucket_above(seconds: list[float], part: float) -> None:
    found = filled(seconds).quantile(part)
    assert found is not None
    exact = sorted(seconds)[max(1, ceil(part * len(seconds))) - 1]
    within = min(max(exact, SHORTEST_SECONDS), LONGEST_SECONDS)
    assert within * 0.999999 <= found <= within * GROWTH * 1.000001


@given(durations, durations)
def test_merging_counts_both(first: list[float], second: list[float]) -> None:
    merged, together = filled(first), filled(first + second)
    merged.merge(filled(second))
    assert merged.buckets == together.buckets
    assert merged.count == len(first) + len(second)
    assert merged.total_s == pytest.approx(together.total_s)


@given(durations)
def test_it_is_bounded(seconds: list[float]) -> None:
    buckets = filled(seconds).buckets
    assert min(buckets) >= 0
    assert max(buckets) <= LAST_BUCKET
    assert sum(buckets.values()) == len(seconds)


def test_of_nothing_there_is_no_quantile() -> None:
    assert Histogram().quantile(0.5) is None
