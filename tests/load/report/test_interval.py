"""How often an interval holds the truth, where that is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.load.report.columns import FIGURES, Figure, rank, to_columns
from tercet.load.report.interval import Side, change, student
from tercet.load.report.resampling import PIECES, cut, draw, drawn, pieces_of, span_of

from .made_run import random_rows, refused, row, run

NONE = np.empty(0)


def figure(name: str) -> Figure:
    return next(each for each in FIGURES if each.name == name)


def held(name: str, truth: float, trials: int, count: int, carried: float = 0.0, one_by_one: bool = False) -> float:
    """The share of runs of so many requests whose draws have `truth` in their middle 95 %."""
    inside = 0
    for trial in range(trials):
        made = run(random_rows(1_000 + trial, count, carried=carried))
        columns = to_columns(made.rows, 0, made.summary.points[0].duration_s)
        pieces = count if one_by_one else pieces_of(columns)
        weights = draw(np.random.default_rng(trial), pieces, 300)
        draws = drawn(columns, [figure(name)], cut(columns, pieces, span_of(columns)), weights)[name]
        low, high = np.quantile(draws, [0.025, 0.975])
        inside += bool(low <= truth <= high)
    return inside / trials


@pytest.mark.parametrize(
    ("name", "truth"),
    [
        ("TTFT p50", 200.0),
        ("TTFT p95", 200 * math.exp(0.5 * 1.6449)),
        # Of those that were not refused, and nothing else: P(ttft < 0.5 s).
        ("qualified of offered", 100 * 0.98 * 0.96657),
        ("refused of offered", 2.0),
    ],
)
def test_a_figure_of_independent_requests(name: str, truth: float) -> None:
    assert 0.90 <= held(name, truth, trials=150, count=400) <= 0.99


def test_what_neighbours_share_is_counted_once() -> None:
    # Drawn one by one, requests that wait for each other look like much more than they are.
    assert held("TTFT p50", 200.0, trials=60, count=1_000, carried=0.9, one_by_one=True) < 0.6
    assert held("TTFT p50", 200.0, trials=60, count=1_000, carried=0.9) > 0.8


def test_a_piece_has_a_request() -> None:
    assert pieces_of(to_columns([row(index) for index in range(500)], 0, 1.0)) == PIECES
    assert pieces_of(to_columns([row(1), row(2)], 0, 0.7)) == 2
    assert pieces_of(to_columns([], 0, 0.0)) == 1


def test_pieces_follow_one_another() -> None:
    made = run([row(index, index * 0.1, gap_s=0.001) for index in range(400)])
    columns = to_columns(made.rows, 0, made.summary.points[0].duration_s)
    parts = cut(columns, PIECES, span_of(columns))
    for pieces in (parts.block, parts.window):
        assert list(pieces) == sorted(pieces)
        assert set(pieces) == set(range(PIECES))
    assert set(np.bincount(parts.block)) == {10}
    # A request that never was over counts at the end.
    lost = to_columns([*made.rows, row(400, 0.0, end_s=None)], 0, made.summary.points[0].duration_s)
    assert cut(lost, PIECES, span_of(lost)).window[-1] == PIECES - 1


def test_a_drawn_run_is_as_large_as_the_run() -> None:
    weights = draw(np.random.default_rng(1), 40, 500)
    assert set(weights.sum(axis=1)) == {40}
    # And each piece as likely as another.
    assert weights.mean(axis=0) == pytest.approx(np.ones(40), abs=0.25)


def test_drawn_percentiles_are_measured_values() -> None:
    made = run(random_rows(1, 400))
    columns = to_columns(made.rows, 0, made.summary.points[0].duration_s)
    parts = cut(columns, 40, span_of(columns))
    ones = np.ones((1, 40), dtype=np.int32)
    for each in FIGURES:
        whole = drawn(columns, FIGURES, parts, ones)[each.name]
        expected = drawn(columns, [each], parts, 3 * ones)[each.name]
        assert whole == pytest.approx(expected if each.kind != "rate" else expected / 3)
    percentile = drawn(columns, FIGURES, parts, draw(np.random.default_rng(1), 40, 50))["TTFT p99"]
    assert set(percentile) <= set(columns.ttft_ms)


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(0, 40))
@settings(max_examples=60)
def test_a_value_counts_as_often_as_its_piece_was_drawn(seed: int, pieces: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [row(at, float(at), ttft_s=float(rng.integers(1, 5))) for at in range(count)]
    # Of some nothing was measured.
    rows = [refused(each.index, each.due_s) if rng.random() < 0.2 else each for each in rows]
    columns = to_columns(rows, 0, float(count))
    parts = cut(columns, pieces, span_of(columns))
    weights = draw(rng, pieces, 4)
    for drawing, weight in zip(drawn(columns, FIGURES, parts, weights)["TTFT p95"], weights, strict=True):
        times = weight[parts.block]
        repeated = np.sort(np.repeat(columns.ttft_ms, times))
        repeated = repeated[~np.isnan(repeated)]
        if len(repeated):
            assert drawing == repeated[rank(len(repeated), 95) - 1]
        else:
            assert math.isnan(drawing)


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_several_runs_a_side(runs: int) -> None:
    rng = np.random.default_rng(runs)
    inside = 0
    for _ in range(1_000):
        # Runs differ by 5 %, and B takes 10 % longer.
        a, b = rng.normal(100, 5, runs), rng.normal(110, 5, runs)
        found = change(Side(a.mean(), list(a), NONE, 1), Side(b.mean(), list(b), NONE, 1), "relative")
        assert found is not None
        inside += found.low <= 10 <= found.high
    assert 0.93 <= inside / 1_000 <= 0.99


def test_one_run_beside_several() -> None:
    a = Side(100.0, [100.0], np.array([95.0, 100.0, 105.0]), 40)
    b = Side(110.0, [105.0, 115.0], NONE, 40)
    found = change(a, b, "relative")
    assert found is not None
    assert found.low < 0 < 10 < found.high
    assert found.value == pytest.approx(10)


def test_shares_differ_by_points_and_nothing_is_relative_to_zero() -> None:
    nothing = Side(0.0, [0.0], np.zeros(10), 40)
    some = Side(4.0, [4.0], np.linspace(2, 6, 10), 40)
    assert change(nothing, some, "relative") is None
    found = change(nothing, some, "points")
    assert found is not None
    assert (found.value, found.low, found.high) == (4, 2, 6)


def test_draws_without_a_figure_are_left_out_unless_they_are_many() -> None:
    some = Side(1.0, [1.0], np.ones(100), 40)
    few, many = np.ones(100), np.ones(100)
    few[:4], many[:40] = math.nan, math.nan
    assert change(some, Side(1.0, [1.0], few, 40), "relative") is not None
    assert change(some, Side(1.0, [1.0], many, 40), "relative") is None


def test_runs_that_are_all_alike() -> None:
    one, other = Side(10.0, [10.0, 10.0], NONE, 1), Side(11.0, [11.0, 11.0], NONE, 1)
    found = change(one, other, "relative")
    assert found is not None
    assert found.low == found.high == pytest.approx(10)


def test_students_t() -> None:
    assert student(1) == 12.706
    assert student(0.5) == 12.706
    assert student(9) == pytest.approx(2.262, abs=0.002)
    assert student(25) == pytest.approx(2.060, abs=0.002)
    assert student(1e9) == pytest.approx(1.96, abs=0.001)
    assert student(math.inf) == 1.96
