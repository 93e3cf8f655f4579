"""Lines are judged by what was observed, and by nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.acceptance.faults import Deed, End, FaultsSeen
from tercet.acceptance.findings import Findings
from tercet.acceptance.judging import Judged, Observed, Verdict, judge
from tercet.acceptance.spec_file import to_spec
from tercet.load.folder import Run
from tercet.load.record import Row, ServerSample
from tests.acceptance.runs import late, mixed, queued, run_of
from tests.load.rows import done, refused, sample

LOADS = {"load": {"steady": {"rate": [2, 4]}, "twice": {"times": 2, "of": "steady"}}}
IDLE = ServerSample(0, 0, 0, 5, 95, 0.0, ())


def judged(line: dict[str, Any], observed: Observed, **more: Any) -> Judged:
    (found,) = judge(to_spec({**LOADS, **more, "line": [line]}, Path()), observed)
    return found


def of_run(run: Run, measure: str, limit: float, **line: Any) -> Judged:
    line = {"measure": measure, "limit": limit, "load": "steady", **line}
    return judged(line, Observed({"steady": run}, folders={"steady": "out/steady"}))


def of_rows(rows: Sequence[Row], measure: str, limit: float, **line: Any) -> Judged:
    return of_run(run_of(rows), measure, limit, **line)


@pytest.mark.parametrize(
    ("measure", "figure"),
    [
        ("ttft_p50_ms", 500.0), ("gap_p99_ms", 100.0), ("largest_gap_p95_ms", 100.0), ("e2e_p95_ms", 1600.0),
        ("failed_percent", 25.0), ("refused_p99_ms", 8.0), ("untyped_refusals", 1.0),
    ],
)  # fmt: skip
def test_each_figure_passes_at_its_limit_and_fails_below(measure: str, figure: float) -> None:
    rows = [done(0), done(1, outcome="failed", reason="WORKER_LOST", first_s=None, last_s=None, largest_gap_ms=None)]
    rows += [refused(2), refused(3, retry_after_s=None)]
    found = of_rows(rows, measure, figure + 1e-6)
    assert (found.verdict, found.figure, found.where) == (Verdict.PASS, pytest.approx(figure), "out/steady")
    assert of_rows(rows, measure, figure - 0.5).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("measure", "figure"), [("qualified_percent", 30.0), ("accepted_kept_percent", 60.0), ("qualified_per_s", 0.3)]
)
def test_what_is_agreed_as_the_least_fails_above(measure: str, figure: float) -> None:
    rows = mixed(3, 2, 5)
    assert of_rows(rows, measure, figure - 1e-6).verdict is Verdict.PASS
    assert of_rows(rows, measure, figure + 0.01).verdict is Verdict.FAIL


def test_who_went_away_was_promised_nothing() -> None:
    rows = [done(0), done(1, outcome="cancelled", qualified=False)]
    assert of_rows(rows, "qualified_percent", 100).verdict is Verdict.PASS
    assert of_rows(rows, "accepted_kept_percent", 100).verdict is Verdict.PASS


def test_slow_readers_and_the_warm_up_are_in_no_figure_of_streams() -> None:
    rows = [done(0), done(1, slow_reader=True, largest_gap_ms=9e3, last_s=99.0), done(2, warm_up=True, first_s=50.0)]
    assert of_rows(rows, "largest_gap_p99_ms", 100).verdict is Verdict.PASS
    assert of_rows(rows, "gap_p99_ms", 101).verdict is Verdict.PASS
    assert of_rows(rows, "ttft_p99_ms", 501).verdict is Verdict.PASS


def test_a_line_may_be_of_one_class_and_of_a_part_of_the_time() -> None:
    rows = [done(0), done(1, traffic_class="batch", first_s=9.0), done(2, due_s=7.0, sent_s=7.0, first_s=9.0)]
    assert of_rows(rows, "ttft_p99_ms", 600).verdict is Verdict.FAIL
    assert of_rows(rows, "ttft_p99_ms", 600, traffic_class="interactive", until_s=5).verdict is Verdict.PASS
    assert of_rows(rows, "ttft_p99_ms", 600, from_s=5).verdict is Verdict.FAIL
    assert of_rows(rows, "qualified_per_s", 0.0, traffic_class="batch").figure == pytest.approx(0.1)


def test_a_rate_of_a_part_of_the_time_is_by_the_length_of_that_part() -> None:
    rows = [
        done(index, due_s=index / 2, sent_s=index / 2, end_s=index / 2 + 0.1, warm_up=index < 8,
             traffic_class="batch" if index % 2 else "interactive")
        for index in range(20)
    ]  # fmt: skip
    run = run_of(rows, warm_up_s=4.0)
    for part in ({}, {"from_s": 2}, {"from_s": 7}, {"until_s": 8}, {"from_s": 6, "until_s": 7}, {"until_s": 99}):
        assert of_run(run, "qualified_per_s", 0, **part).figure == pytest.approx(2.0), part
        assert of_run(run, "qualified_per_s", 0, traffic_class="batch", **part).figure == pytest.approx(1.0), part
    assert of_run(run, "qualified_per_s", 0, until_s=4).verdict is Verdict.NOT_MEASURED


def test_a_rate_of_a_class_is_over_the_same_time_as_that_of_all() -> None:
    # What is served late does not count as if it had been served in time.
    rows = [done(0), done(1, traffic_class="batch", end_s=40.0)]
    of_all = of_rows(rows, "qualified_per_s", 0).figure
    of_each = [of_rows(rows, "qualified_per_s", 0, traffic_class=name).figure for name in ("interactive", "batch")]
    assert of_all == pytest.approx(2 / 40) == pytest.approx(sum(each or 0.0 for each in of_each))


def test_who_goes_away_on_purpose_keeps_no_rate_from_holding() -> None:
    rows = [*mixed(18, 0), *(done(index, outcome="cancelled", qualified=False) for index in range(18, 24))]
    assert of_rows(rows, "held_rate", 2).verdict is Verdict.PASS
    assert of_rows([*rows, *mixed(0, 2)], "held_rate", 2).detail == "18 of 20 kept their SLO at 2 /s"


def test_a_line_may_be_of_one_rate() -> None:
    run = run_of([*mixed(9, 1), *mixed(5, 5, point=1)], rates=(2.0, 4.0))
    assert of_run(run, "qualified_percent", 90).verdict is Verdict.PASS
    assert of_run(run, "qualified_percent", 90, rate=4).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    "measure",
    ["ttft_p95_ms", "failed_percent", "qualified_per_s", "held_rate", "untyped_refusals", "accepted_kept_percent"],
)  # fmt: skip
@pytest.mark.parametrize("limit", [0.0, 1e6])
def test_a_client_that_was_the_limit_has_measured_nothing(measure: str, limit: float) -> None:
    found = of_rows(late(mixed(9, 1, 2), 0.02), measure, limit, required=True)
    assert (found.verdict, found.figure) == (Verdict.NOT_MEASURED, None)
    assert "client was the limit, 20.0 ms late" in found.detail


def test_a_contract_may_agree_to_a_later_client_and_says_so() -> None:
    run = run_of(late(mixed(9, 1), 0.02))
    line = {"measure": "qualified_percent", "load": "steady", "limit": 90}
    found = judged(line, Observed({"steady": run}), client={"max_lag_ms": 25})
    assert (found.verdict, found.detail) == (Verdict.PASS, "9 of 10 requests; client 20.0 ms late at P99")
    assert judged(line, Observed({"steady": run}), client={"max_lag_ms": 19}).verdict is Verdict.NOT_MEASURED


def test_a_client_without_a_moment_left_has_measured_nothing() -> None:
    busy = [sample(1.0, cpu_share=0.95), sample(2.0, cpu_share=0.99), sample(3.0, cpu_share=0.2)]
    found = of_run(run_of(mixed(9, 0), samples=busy), "qualified_percent", 90)
    assert (found.verdict, found.detail) == (
        Verdict.NOT_MEASURED,
        "the client was the limit: its loop had no time left",
    )


def test_the_largest_rate_that_holds_is_one_up_to_which_all_do() -> None:
    rows = [*mixed(20, 0), *mixed(18, 2, point=1), *mixed(20, 0, point=2)]
    found = of_run(run_of(rows, rates=(1.0, 2.0, 4.0)), "held_rate", 1.0)
    assert (found.verdict, found.figure) == (Verdict.PASS, 1.0)
    assert "18 of 20 kept their SLO at 2 /s" in found.detail
    assert of_run(run_of(rows[:20], rates=(3.0,)), "held_rate", 3.0).detail == "no rate was too much"
    assert of_run(run_of(rows[:20], has_rate=False), "held_rate", 3.0).verdict is Verdict.NOT_MEASURED


def goodput(steady: Run, twice: Run, limit: float) -> Judged:
    line = {"measure": "goodput_percent", "load": "twice", "limit": limit}
    return judged(line, Observed({"steady": steady, "twice": twice}))


def test_goodput_under_overload_is_a_part_of_the_most() -> None:
    steady = run_of([*mixed(10, 0), *mixed(20, 0, point=1)], rates=(2.0, 4.0))
    assert goodput(steady, run_of(mixed(17, 0, 20)), 80).verdict is Verdict.PASS
    assert goodput(steady, run_of(mixed(15, 30)), 80).verdict is Verdict.FAIL
    assert goodput(run_of(mixed(0, 5)), run_of(mixed(5, 0)), 80).verdict is Verdict.NOT_MEASURED
    assert goodput(run_of(late(mixed(5, 0), 1.0)), run_of(mixed(5, 0)), 80).verdict is Verdict.NOT_MEASURED


def test_a_load_that_could_not_be_run_is_not_measured() -> None:
    found = judged(
        {"measure": "refused_p99_ms", "load": "twice", "limit": 5}, Observed(not_run={"twice": "nothing held"})
    )
    assert (found.verdict, found.detail) == (Verdict.NOT_MEASURED, "nothing held")


def test_refusals_that_were_not_there_are_not_judged() -> None:
    for measure in ("untyped_refusals", "refused_p99_ms"):
        assert of_rows(mixed(5, 0), measure, 0).verdict is Verdict.NOT_MEASURED


def test_a_refusal_without_a_reason_of_its_own_is_untyped() -> None:
    assert of_rows([refused(0, reason="HTTP_429")], "untyped_refusals", 0).verdict is Verdict.FAIL
    assert of_rows([refused(0)], "untyped_refusals", 0).verdict is Verdict.PASS


def test_the_queue_is_what_the_server_says_of_it() -> None:
    run = run_of(mixed(5, 0), samples=queued(0, 9, 3))
    assert of_run(run, "waiting_most", 9).verdict is Verdict.PASS
    assert of_run(run, "waiting_most", 8).verdict is Verdict.FAIL


@pytest.mark.parametrize(("required", "verdict"), [(False, Verdict.NOT_TOLD), (True, Verdict.FAIL)])
def test_what_a_server_does_not_tell_fails_only_where_it_is_required(required: bool, verdict: Verdict) -> None:
    silent = dataclasses.replace(sample(1.0), server=None)
    assert of_run(run_of(mixed(5, 0), samples=[silent]), "waiting_most", 9, required=required).verdict is verdict
    observed = Observed(outputs={}, faults=FaultsSeen((), None, ()))
    for measure in ("blocks_left", "requests_left", "freed_p99_ms", "going_on_after_cancel", "wrong_usage"):
        assert judged({"measure": measure, "required": required}, observed).verdict is verdict


def test_cost_is_of_qualified_requests_alone() -> None:
    run = run_of(mixed(10, 5, 5))
    line = {"measure": "cost_per_qualified", "load": "steady", "limit": 0.01}
    observed = Observed({"steady": run})
    found = judged(line, observed, cost={"worker_hour": 3.6, "workers": 4})
    assert found.figure == pytest.approx(4 * 10 * 0.001 / 10)
    assert found.verdict is Verdict.PASS
    assert judged(line, observed, cost={"worker_hour": 36, "workers": 4}).verdict is Verdict.FAIL
    assert judged(line, Observed({"steady": run_of(mixed(0, 5))}), cost={"worker_hour": 1, "workers": 1}).figure is None


def test_what_is_wrong_with_outputs_is_shown() -> None:
    observed = Observed(outputs={"wrong_references": Findings(5, ("a", "b", "c", "d"))})
    found = judged({"measure": "wrong_references"}, observed, outputs={"references": "x.json"})
    assert (found.verdict, found.figure, found.detail) == (Verdict.FAIL, 4, "a; b; c; and 1 more")


LEAKS = {
    "blocks_left": FaultsSeen((), dataclasses.replace(IDLE, kv_used=3), (5.0,)),
    "requests_left": FaultsSeen((), dataclasses.replace(IDLE, running=1, queued=1), (5.0,)),
    "freed_p99_ms": FaultsSeen((), IDLE, (5.0, 4000.0)),
    "wrong_ends": FaultsSeen((End(Deed("reads on"), "r", "WORKER_LOST"),), IDLE, (5.0,)),
}


@pytest.mark.parametrize("measure", LEAKS)
def test_each_leak_fails_its_own_line(measure: str) -> None:
    right = FaultsSeen((End(Deed("reads on"), "r", ""),), IDLE, (5.0,))
    for seen, name in ((seen, name) for name, seen in LEAKS.items()):
        seen = dataclasses.replace(seen, ends=seen.ends or right.ends)
        found = judged({"measure": measure}, Observed(faults=seen))
        assert (found.verdict is Verdict.FAIL) == (name == measure)
    assert judged({"measure": measure}, Observed(faults=right)).verdict is Verdict.PASS


@settings(max_examples=100, deadline=None)
@given(
    counts=st.tuples(*[st.integers(0, 8)] * 3),
    measure=st.sampled_from(
        ["qualified_percent", "accepted_kept_percent", "failed_percent", "ttft_p95_ms", "held_rate"]
    ),
    limit=st.floats(0, 1e4),
    slack=st.floats(0, 1e4),
)
def test_who_agrees_to_less_never_fails_where_more_would_pass(
    counts: tuple[int, int, int], measure: str, limit: float, slack: float
) -> None:
    run = run_of(mixed(*counts))
    found = of_run(run, measure, limit)
    looser = limit - slack if found.line.measure.is_least else limit + slack
    if found.verdict is Verdict.PASS:
        assert of_run(run, measure, looser).verdict is Verdict.PASS
    if found.figure is not None:
        assert (found.verdict is Verdict.PASS) == found.line.holds(found.figure)
