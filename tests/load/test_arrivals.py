"""When requests are due: rates, bursts, ramps; the same seed, the same moments."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.load.arrivals import Arrivals, Kind, parse_arrivals
from tercet.load.workload_error import WorkloadError

RATES = st.floats(0.01, 1000.0)
SEEDS = st.integers(0, 2**32)


def moments(text: str, rate: float, count: int, *, seed: int = 0, ramp_s: float = 10.0) -> list[float]:
    how = parse_arrivals("arrivals", text)
    return list(itertools.islice(how.moments(rate, random.Random(seed), ramp_s), count))


@settings(max_examples=50)
@given(st.sampled_from(["constant", "poisson", "burst", "burst:7", "ramp", "at-once"]), RATES, SEEDS)
def test_moments_come_in_order_and_again(text: str, rate: float, seed: int) -> None:
    found = moments(text, rate, 50, seed=seed)
    assert found == moments(text, rate, 50, seed=seed)
    assert found == sorted(found)
    assert not found or found[0] >= 0.0


@settings(max_examples=30)
@given(RATES, SEEDS)
def test_poisson_has_its_rate_and_spread(rate: float, seed: int) -> None:
    found = [0.0, *moments("poisson", rate, 4000, seed=seed)]
    between = [(later - earlier) * rate for earlier, later in itertools.pairwise(found)]
    # Mean and standard deviation of gaps are both 1; the first is off by 1 / sqrt(4000), six times that is never.
    mean = sum(between) / len(between)
    assert mean == pytest.approx(1.0, abs=0.1)
    assert sum((gap - mean) ** 2 for gap in between) / len(between) == pytest.approx(1.0, abs=0.35)


@given(RATES, st.integers(1, 50))
def test_constant_and_burst_offer_the_rate(rate: float, size: int) -> None:
    assert moments("constant", rate, 11)[10] == pytest.approx(10 / rate)
    found = moments(f"burst:{size}", rate, 3 * size)
    assert [len(list(group)) for _, group in itertools.groupby(found)] == [size] * 3
    assert found[-1] == pytest.approx(2 * size / rate)


@given(RATES, st.floats(1.0, 1000.0))
def test_a_ramp_grows_evenly_to_its_rate(rate: float, ramp_s: float) -> None:
    found = moments("ramp", rate, 5000, ramp_s=ramp_s)
    assert all(moment < ramp_s for moment in found)
    if len(found) < 5000:
        # As many in all as at half the rate, and three times as many in the second half as in the first.
        assert len(found) == pytest.approx(rate * ramp_s / 2, abs=1.5)
        early = sum(moment < ramp_s / 2 for moment in found)
        assert early == pytest.approx(len(found) / 4, abs=1.5)
    assert Arrivals(Kind.RAMP).mean_rate(rate) == rate / 2


def test_all_at_once_and_closed_loops_have_no_rate() -> None:
    assert moments("at-once", 1.0, 3) == [0.0] * 3
    assert parse_arrivals("arrivals", "closed:8") == Arrivals(Kind.CLOSED, 8)
    for text in ("closed:8", "at-once"):
        assert parse_arrivals("arrivals", text).mean_rate(5.0) is None
    assert parse_arrivals("arrivals", "burst").mean_rate(5.0) == 5.0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sometimes", "none of constant, poisson, burst, ramp, at-once, closed"),
        ("trace", "none of"),
        ("closed", "'' is not a number"),
        ("closed:0", "not between 1 and"),
        ("burst:1.5", "not a whole number"),
        ("burst:nan", "not between"),
        ("poisson:3", "poisson takes no number"),
    ],
)
def test_what_is_no_kind_is_told(text: str, problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem) as raised:
        parse_arrivals("arrivals", text)
    assert raised.value.field == "arrivals"
