"""Two runs: noise is called noise, a change a change, and what nobody can tell is not told."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest

from tercet.errors import LoadError
from tercet.load.folder import Run
from tercet.load.report.columns import FIGURES
from tercet.load.report.comparison import Comparison, Line, UnlikeRunsError, compare
from tercet.load.report.difference import Difference, differences

from .made_run import ENVIRONMENT, WORKLOAD, random_rows, refused, row, run


def lines(found: Comparison, point: int = 0) -> dict[str, Line]:
    return {f"{line.figure.name} {line.figure.unit}": line for line in found.points[point].lines}


def test_runs_of_the_same_thing_differ_by_noise() -> None:
    trials, called = 120, Counter[str]()
    for trial in range(trials):
        a, b = (run(random_rows(2 * trial + side, 600)) for side in (0, 1))
        found = lines(compare([a], [b], seed=trial, draws=300))
        called.update(name for name, line in found.items() if line.verdict in ("better", "worse"))
    # One in twenty is what 95 % means, of each figure; of 120 tries it may be a few more.
    assert len(FIGURES) == 19
    assert max(called.values()) <= 0.10 * trials
    assert called.total() <= 0.07 * trials * len(FIGURES)


def test_a_run_against_itself_has_not_changed() -> None:
    made = run(random_rows(1, 300))
    found = lines(compare([made], [made]))
    assert found.pop("TTFT p99 ms").verdict == "unknown"
    for line in found.values():
        if line.verdict != "unknown":
            assert (line.change.value, line.change.low, line.change.high) == (0, 0, 0)
            assert line.verdict == "noise"


@pytest.mark.parametrize("schedule", [1, None])
def test_ten_percent_of_two_thousand_requests(schedule: int | None) -> None:
    a = run(random_rows(1, 2_000, schedule=schedule))
    b = run(random_rows(2, 2_000, schedule=schedule, slower=1.1))
    found = compare([a], [b])
    assert found.points[0].paired == (schedule is not None)
    for name in ("TTFT p50 ms", "TPOT p50 ms", "TPOT p95 ms", "largest gap p50 ms", "end to end p50 ms"):
        line = lines(found)[name]
        assert line.verdict == "worse", line
        assert line.change.low < 10 < line.change.high
    back = lines(compare([b], [a]))
    assert back["TPOT p50 ms"].verdict == "better"
    assert back["qualified of offered %"].verdict in ("better", "noise")


def test_pairs_know_more() -> None:
    def width(schedule: int | None) -> float:
        a, b = (run(random_rows(seed, 1_000, schedule=schedule)) for seed in (1, 2))
        change = lines(compare([a], [b]))["accepted output tokens/s"].change
        return change.high - change.low

    assert width(1) < 0.7 * width(None)


def test_several_runs_a_side_know_what_one_does_not() -> None:
    def tries(side: float) -> list[Any]:
        # Runs differ by up to a tenth.
        return [run(random_rows(int(10 * side) + at, 400, slower=side * (0.95 + 0.05 * at))) for at in range(3)]

    found = compare(tries(1.0), tries(1.03))
    assert lines(found)["TPOT p50 ms"].verdict == "noise"
    assert found.warnings == ()
    assert lines(compare(tries(1.0), tries(1.5)))["TPOT p50 ms"].verdict == "worse"
    (warning,) = compare(tries(1.0), tries(1.0)[:1]).warnings
    assert warning.startswith("B: one run")


def test_more_refused_is_worse_by_points() -> None:
    a = run([*(row(at, at * 0.1) for at in range(200))])
    b = run([(row if at % 10 else refused)(at, at * 0.1) for at in range(200)])
    found = lines(compare([a], [b]))
    assert found["refused of offered %"].verdict == "worse"
    assert found["refused of offered %"].change.value == pytest.approx(10)
    assert found["failed of offered %"].verdict == "noise"
    assert found["accepted requests/s"].verdict == "worse"


def test_what_nobody_can_tell() -> None:
    none = run([refused(at, at * 0.1) for at in range(50)])
    some = run([row(at, at * 0.1) for at in range(50)])
    found = lines(compare([none], [some]))
    assert (found["TTFT p50 ms"].verdict, found["TTFT p50 ms"].note) == ("unknown", "A: nothing measured")
    assert found["accepted requests/s"].note == "A: 0"
    found = lines(compare([some], [some]))
    assert found["TTFT p95 ms"].note == "A: 50 values, needs 100; B: 50 values, needs 100"
    assert found["TTFT p50 ms"].verdict == "noise"
    empty = run([])
    assert {line.verdict for line in compare([empty], [empty]).points[0].lines} == {"unknown"}
    assert compare([some], [some]).has("noise")
    assert not compare([empty], [empty]).has("noise")


def test_other_workloads_are_not_compared_unless_they_are_to_be() -> None:
    a = run(random_rows(1, 50))
    b = run(random_rows(2, 50), workload={**WORKLOAD, "arrivals": "burst", "prompt": {"kind": "long"}})
    with pytest.raises(
        UnlikeRunsError, match=r"arrivals \(poisson and burst\), prompt.kind \(None and long\)"
    ) as raised:
        compare([a], [b])
    assert [each.key for each in raised.value.found] == ["arrivals", "prompt.kind"]
    assert [each.key for each in compare([a], [b], anyway=True).workload] == ["arrivals", "prompt.kind"]
    # Of one side as well.
    with pytest.raises(UnlikeRunsError):
        compare([a, b], [a])


def test_loads_are_compared_with_the_same_load() -> None:
    a = run([*random_rows(1, 50), *random_rows(2, 50, point=1)], rates=(1.0, 2.0))
    b = run([*random_rows(3, 50), *random_rows(4, 50, point=1)], rates=(2.0, 4.0))
    (point,) = compare([a], [b]).points
    assert (point.point, point.offered_per_s) == (1, 2.0)
    b = run(random_rows(3, 50), rates=(4.0,))
    with pytest.raises(LoadError, match="no load in common"):
        compare([a], [b])
    closed = run([*random_rows(1, 50), *random_rows(2, 50, point=1)], rates=(None, None))
    assert [point.point for point in compare([closed], [closed]).points] == [0, 1]


def test_runs_of_a_side_may_have_loads_in_another_order() -> None:
    def swept(seed: int, *rates: float) -> Run:
        rows = [random_rows(seed + at, 50, point=at, slower=rate) for at, rate in enumerate(rates)]
        return run([row for each in rows for row in each], rates=rates)

    found = compare([swept(1, 1.0, 2.0, 4.0), swept(11, 4.0, 1.0)], [swept(21, 1.0, 4.0), swept(31, 1.0, 4.0)])
    assert [point.offered_per_s for point in found.points] == [1.0, 4.0]
    # Requests at 4/s take four times as long, and those at 1/s are not mixed with them.
    for at, ttft_ms in ((0, 200), (1, 800)):
        line = lines(found, at)["TTFT p50 ms"]
        assert ttft_ms / 1.5 < line.a < 1.5 * ttft_ms
        assert ttft_ms / 1.5 < line.b < 1.5 * ttft_ms
    twice = run([*random_rows(1, 50), *random_rows(2, 50, point=1)], rates=(1.0, 1.0))
    assert [point.point for point in compare([twice], [twice]).points] == [0, 1]


def test_the_same_seed_says_the_same() -> None:
    a, b = run(random_rows(1, 300)), run(random_rows(2, 300))
    assert compare([a], [b], seed=3) == compare([a], [b], seed=3)
    assert compare([a], [b], seed=3) != compare([a], [b], seed=4)


def test_what_differs_around_it_is_said() -> None:
    a = run(random_rows(1, 20))
    b = run(random_rows(2, 20), environment={**ENVIRONMENT, "git": "def", "gpus": ["H200"]})
    late = dataclasses.replace(b.summary.points[0], client_limited=True)
    b = dataclasses.replace(b, summary=dataclasses.replace(b.summary, points=(late,)))
    found = compare([a], [b])
    assert found.environment == (Difference("git", "abc", "def"), Difference("gpus", None, ["H200"]))
    assert found.warnings[1].startswith("B, 10/s: the client was the limit")


def test_differences_of_nested_descriptions() -> None:
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}) == (Difference("a.c", 2, 3),)
    assert differences({"a": {"b": 1}}, {"a": None}) == (Difference("a.b", 1, None),)
    assert differences({}, {}) == ()
    a, b = ({"slo": {"": {"ttft_s": each}}, "workers": [{"device": "cpu"}, {"kv_blocks": each}]} for each in (1, 2))
    assert differences(a, b) == (Difference("slo.*.ttft_s", 1, 2), Difference("workers.1.kv_blocks", 1, 2))
