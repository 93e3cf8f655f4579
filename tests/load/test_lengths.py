"""Lengths stay within their bounds, and half of them lie below the median."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.load.lengths import INPUTS, OUTPUTS, Lengths, parse_lengths
from tercet.load.workload_error import WorkloadError


def lengths(text: str) -> Lengths:
    return parse_lengths("input", text, INPUTS)


@given(st.integers(1, 10_000), st.integers(0, 10_000), st.integers())
def test_uniform_and_constant_stay_within_bounds(least: int, more: int, seed: int) -> None:
    rng = random.Random(seed)
    assert all(least <= lengths(f"uniform:{least}-{least + more}").draw(rng) <= least + more for _ in range(50))
    assert lengths(f"constant:{least}").draw(rng) == least


@settings(max_examples=20)
@given(st.integers(100, 5000), st.floats(0.1, 1.0), st.integers())
def test_half_of_the_log_normal_ones_lie_below_the_median(median: int, sigma: float, seed: int) -> None:
    rng = random.Random(seed)
    most = median * 2
    drawn = [lengths(f"lognormal:{median},{sigma},{most}").draw(rng) for _ in range(4000)]
    assert all(1 <= length <= most for length in drawn)
    # Off by half a percent on the average; six times that is never.
    assert sum(length < median for length in drawn) / 4000 == pytest.approx(0.5, abs=0.06)
    # Of those above, as many lie beyond a factor as below its inverse, but for what is cut off.
    assert sum(length <= median / 1.5 for length in drawn) == pytest.approx(
        sum(length >= median * 1.5 for length in drawn), abs=350
    )


def test_each_preset_is_one() -> None:
    for presets in (INPUTS, OUTPUTS):
        for name in presets:
            found = parse_lengths("output", name, presets)
            assert 1 <= found.least <= found.draw(random.Random(1)) <= found.most


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("huge", "'huge' is none of short, medium, long, prefill-heavy, constant:N"),
        ("constant:0", "0 is not between 1"),
        ("constant:many", "'many' is not a number"),
        ("uniform:9", "is not uniform:A-B"),
        ("uniform:9-3", "3 is not between 9"),
        ("lognormal:100", "is not lognormal:MEDIAN,SIGMA"),
        ("lognormal:100,9", "9 is not between 0 and 4"),
        ("lognormal:100,0.5,50", "50 is not between 100"),
    ],
)
def test_what_is_no_length_is_told(text: str, problem: str) -> None:
    with pytest.raises(WorkloadError, match=f"input: .*{problem}"):
        lengths(text)
