"""Figures of columns are those of the summary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.load.record import Row
from tercet.load.report.columns import FIGURES, figure_of, rank, to_columns

from .made_run import refused, row, run

SECONDS = st.floats(0.001, 20)


@st.composite
def some_rows(draw: st.DrawFn) -> list[Row]:
    rows = []
    for index in range(draw(st.integers(0, 30))):
        due = draw(st.floats(0, 30))
        if draw(st.booleans()):
            rows.append(refused(index, due))
            continue
        outcome = draw(st.sampled_from(["completed", "cancelled", "failed"]))
        made = row(
            index, due, draw(SECONDS), draw(st.floats(0.001, 1)), output_tokens=draw(st.integers(1, 20)),
            outcome=outcome, qualified=outcome == "completed" and draw(st.booleans()), slow_reader=draw(st.booleans()),
            warm_up=due < 5,
        )  # fmt: skip
        rows.append(made)
    return rows


@given(some_rows())
def test_they_say_what_the_summary_says(rows: list[Row]) -> None:
    made = run(rows, warm_up_s=5.0)
    (point,) = made.summary.points
    columns = to_columns(rows, 5.0, point.duration_s)
    assert len(columns) == point.offered
    spreads = {"TTFT": point.ttft_ms, "TPOT": point.tpot_ms, "largest gap": point.largest_gap_ms,
               "end to end": point.e2e_ms}  # fmt: skip
    found = {(figure.name, figure.unit): figure_of(columns, figure) for figure in FIGURES}
    for (name, unit), value in found.items():
        kind, _, percentile = name.rpartition(" ")
        if kind in spreads:
            spread = spreads[kind]
            assert value == (None if spread is None else pytest.approx(getattr(spread, percentile)))
        elif unit.endswith("/s"):
            rate = {
                ("accepted", "requests/s"): point.accepted_per_s,
                ("qualified", "requests/s"): point.qualified_per_s,
                ("accepted output", "tokens/s"): point.accepted_tokens_per_s,
                ("qualified output", "tokens/s"): point.qualified_tokens_per_s,
            }[name, unit]
            assert value == (pytest.approx(rate) if point.duration_s else None)
        elif point.offered:
            counts = {**point.outcomes, "qualified": sum(each.qualified for each in rows if not each.warm_up)}
            assert value == pytest.approx(100 * counts[name.partition(" ")[0]] / point.offered)


def test_a_rank_is_that_of_a_measured_value() -> None:
    assert [rank(100, percent) for percent in (50, 95, 99)] == [50, 95, 99]
    assert [rank(1, percent) for percent in (50, 95, 99)] == [1, 1, 1]
    assert rank(3, 50) == 2
