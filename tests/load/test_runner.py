"""Whole runs against a scripted server, on a virtual clock: every figure is what the script makes it."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from tercet.load.ask import Ask
from tercet.load.folder import Run
from tercet.load.runner import run_on
from tercet.load.slo import Slo
from tercet.load.target import AnswerError
from tercet.load.workload import Workload
from tests.load.scripted import Script, Scripted
from tests.load.virtual_time import VirtualLoop, run_virtual


def run(target: Scripted, **options: Any) -> Run:
    workload = Workload(**{"input": "constant:32", "output": "constant:11", "arrivals": "constant", **options})

    async def work(loop: VirtualLoop) -> Run:
        return await run_on(workload, target, now=loop.time)

    return run_virtual(work)


def exact(values: list[float], percent: float) -> float:
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def test_every_percentile_is_that_of_the_script() -> None:
    rng = random.Random(3)
    first = [rng.uniform(0.2, 2.0) for _ in range(300)]
    gap = [rng.uniform(0.02, 0.3) for _ in range(300)]
    target = Scripted(lambda ask: Script(first[ask.index], gap[ask.index]))
    (point,) = run(target, requests=300, rates=(20.0,)).summary.points
    assert point.outcomes["completed"] == point.offered == 300
    for name, values in (
        ("ttft_ms", first),
        ("tpot_ms", gap),
        ("largest_gap_ms", gap),
        ("gap_ms", [each for each in gap for _ in range(10)]),
        ("e2e_ms", [one + 10 * two for one, two in zip(first, gap, strict=True)]),
    ):
        found = getattr(point, name)
        for percent in (50, 95, 99):
            wanted = 1e3 * exact(values, percent)
            assert getattr(found, f"p{percent}") == pytest.approx(wanted, rel=0.005), (name, percent)
        assert found.mean == pytest.approx(1e3 * sum(values) / len(values), rel=0.001)
        assert found.max == pytest.approx(1e3 * max(values), rel=0.001)
    assert point.queue_ms is not None
    assert point.queue_ms.p50 == pytest.approx(250)
    assert point.client_lag_ms is not None
    assert point.client_lag_ms.max < 1e-6
    # 11 tokens of 300 requests, over the time until the last was over.
    assert point.accepted_tokens_per_s * point.duration_s == pytest.approx(3300)


def test_a_load_of_so_many_requests_is_over_with_the_last_of_them() -> None:
    """Though it might have lasted longer. One that comes to its end before has lasted so long."""
    target = Scripted(lambda ask: Script(0.05, 0.01))
    for requests, duration_s, seconds in ((20, 60.0, 1.15), (1_000, 10.0, 10.1)):
        (point,) = run(target, requests=requests, rates=(20.0,), duration_s=duration_s).summary.points
        assert point.duration_s == pytest.approx(seconds, abs=0.1)
        assert point.accepted_per_s == pytest.approx(point.offered / point.duration_s)


def test_a_server_that_stands_still_shows_its_delay_to_all_that_are_due_meanwhile() -> None:
    target = Scripted(lambda ask: Script(0.01, 0.001), stall=(2.0, 3.0))
    result = run(target, requests=100, rates=(20.0,))
    late = [row for row in result.rows if 1.995 <= row.due_s < 2.985]
    assert len(late) == 20
    for row in late:
        # Sent at its moment all the same, and as late as the end of the stall makes it.
        assert row.sent_s == pytest.approx(row.due_s)
        assert row.first_s == pytest.approx(max(3.0, row.due_s + 0.01))
    (point,) = result.summary.points
    assert point.ttft_ms is not None
    # Of 100 requests 20 were late by 0.05 to 1 s: what waits for answers before it asks again would have seen one.
    assert point.ttft_ms.p95 == pytest.approx(760, abs=51)
    assert point.ttft_ms.p50 == pytest.approx(10)


def test_a_client_that_stands_still_charges_the_server_from_the_due_time_and_says_so() -> None:
    target = Scripted(lambda ask: Script(0.01, 0.001))
    workload = Workload(input="constant:8", output="constant:3", arrivals="constant", requests=100, rates=(20.0,))

    async def work(loop: VirtualLoop) -> Run:
        loop.call_later(2.0, loop.stall, 1.0)
        return await run_on(workload, target, now=loop.time)

    result = run_virtual(work)
    (point,) = result.summary.points
    assert point.client_limited
    assert point.client_lag_ms is not None
    assert point.ttft_ms is not None
    assert point.ttft_sent_ms is not None
    assert 900 < point.client_lag_ms.max <= 1000
    assert point.ttft_ms.max == pytest.approx(point.client_lag_ms.max + 10)
    # What was sent late was answered as fast as ever; but for the one that ran when the client stopped.
    assert point.ttft_sent_ms.p95 == pytest.approx(10)
    assert max(sample.client.loop_lag_ms for sample in result.samples) > 900


def test_each_outcome_has_its_reason() -> None:
    refusal = AnswerError("QUEUE_FULL", "full", refused=True, retry_after_s=1.5)
    scripts = [
        Script(),
        Script(error=refusal),
        Script(error=AnswerError("WORKER_LOST", "gone"), error_after=2),
        Script(first_s=None),
        Script(error=AnswerError("DEADLINE_PASSED", "late"), error_after=1),
    ]
    target = Scripted(lambda ask: scripts[ask.index])
    result = run(target, requests=5, rates=(10.0,), patience_s=5.0)
    ends = [(row.outcome, row.reason, row.output_tokens, row.missed) for row in result.rows]
    assert ends == [
        ("completed", "length", 11, ""),
        ("refused", "QUEUE_FULL", 0, ""),
        ("failed", "WORKER_LOST", 2, ""),
        ("failed", "UNFINISHED", 0, ""),
        ("failed", "DEADLINE_PASSED", 1, "deadline"),
    ]
    done, refused, lost, hung, _ = result.rows
    assert (done.qualified, refused.retry_after_s, lost.request_id, hung.first_s) == (True, 1.5, "r-2", None)
    assert hung.end_s == pytest.approx(5.4)
    assert target.running == 0


def test_limits_are_those_of_the_flags_else_of_the_server() -> None:
    def missed(**options: Any) -> list[str]:
        target = Scripted(
            lambda ask: Script(0.1 * (1 + ask.index), 0.01 * (1 + ask.index)), limits={"": Slo(ttft_s=0.15)}
        )
        return [row.missed for row in run(target, requests=3, rates=(1.0,), **options).rows]

    assert missed() == ["", "ttft", "ttft"]
    assert missed(slo={"": Slo(ttft_s=0.25, gap_s=0.015)}) == ["", "gap", "ttft+gap"]
    assert missed(slo={"": Slo(largest_gap_s=0.015, e2e_s=0.45)}) == ["", "largest-gap", "largest-gap+e2e"]
    assert missed(slo={"batch": Slo(ttft_s=0.01)}) == ["", "", ""]


def test_clients_that_lose_interest_leave_and_slow_readers_are_slow() -> None:
    target = Scripted(lambda ask: Script(1.0, 0.05))
    rows = run(target, requests=400, rates=(50.0,), cancel_ratio=0.5).rows
    cancelled = [row for row in rows if row.outcome == "cancelled"]
    assert 150 < len(cancelled) < 250
    assert target.left == len(cancelled)
    early = [row for row in cancelled if row.first_s is None]
    assert 20 < len(early) < 80
    assert all(row.end_s is not None and row.end_s - row.due_s <= 0.2 for row in early)
    assert {row.output_tokens for row in cancelled} == set(range(11))
    assert not any(row.qualified for row in cancelled)

    rows = run(
        Scripted(lambda ask: Script(0.01, 0.001)),
        requests=200,
        rates=(50.0,),
        slow_reader_ratio=0.25,
        slow_reader_tokens_per_s=4.0,
    ).rows
    slow = [row for row in rows if row.slow_reader]
    assert 20 < len(slow) < 80
    assert all(row.outcome == "completed" and row.gap_p50_ms == pytest.approx(251) for row in slow)
    assert all(row.gap_p50_ms == pytest.approx(1) for row in rows if not row.slow_reader)


def test_the_warm_up_is_recorded_and_in_no_figure() -> None:
    target = Scripted(lambda ask: Script(5.0 if ask.index < 10 else 0.1))
    result = run(target, duration_s=3.0, warm_up_s=1.0, rates=(10.0,))
    (point,) = result.summary.points
    assert [row.warm_up for row in result.rows] == [True] * 10 + [False] * 20
    assert (point.offered, point.warm_up) == (20, 10)
    assert point.ttft_ms is not None
    assert point.ttft_ms.max == pytest.approx(100)
    assert point.gap_ms is not None
    assert point.gap_ms.count == 200


def test_a_closed_loop_has_so_many_at_a_time_and_a_limit_no_more() -> None:
    target = Scripted(lambda ask: Script(0.1, 0.01))
    result = run(target, arrivals="closed:4", duration_s=2.0)
    assert target.most_running == 4
    # 0.2 s each.
    assert len(result.rows) == 40
    assert all(row.due_s == row.sent_s for row in result.rows)
    assert result.summary.points[0].offered_per_s is None

    target = Scripted(lambda ask: Script(0.1, 0.01))
    result = run(target, arrivals="at-once", requests=12, max_concurrency=4)
    assert target.most_running == 4
    assert [row.due_s for row in result.rows] == [0.0] * 12
    assert [row.sent_s for row in result.rows] == pytest.approx([0.0] * 4 + [0.2] * 4 + [0.4] * 4)
    point = result.summary.points[0]
    assert point.ttft_ms is not None
    assert point.ttft_ms.max == pytest.approx(500)


@pytest.mark.parametrize("options", [{"arrivals": "closed:3"}, {"max_concurrency": 3, "rates": (10.0,)}])
def test_a_server_that_never_answers_holds_nobody_up_for_ever(options: dict[str, Any]) -> None:
    result = run(Scripted(lambda ask: Script(first_s=None)), requests=20, patience_s=7.0, **options)
    sent = [row for row in result.rows if row.sent_s is not None]
    assert len(sent) == 3
    assert {(row.outcome, row.reason, row.qualified) for row in result.rows} == {("failed", "UNFINISHED", False)}
    assert result.summary.points[0].duration_s < 30


def test_a_sweep_asks_the_same_lengths_and_other_tokens_at_each_rate() -> None:
    target = Scripted(lambda ask: Script(0.01, 0.001))
    result = run(target, input="uniform:10-90", output="uniform:2-9", requests=20, rates=(5.0, 10.0))
    first, second = target.asked[:20], target.asked[20:]
    assert [row.point for row in result.rows] == [0] * 20 + [1] * 20
    assert [point.offered_per_s for point in result.summary.points] == [5.0, 10.0]

    def sizes(asked: list[Ask]) -> list[tuple[int | None, int]]:
        return [(ask.prompt_tokens, ask.max_tokens) for ask in asked]

    assert sizes(first) == sizes(second)
    assert not {ask.prompt for ask in first} & {ask.prompt for ask in second}
    assert {sample.point for sample in result.samples} == {0, 1}
    assert all(sample.server is None or sample.server.kv_free == 3 for sample in result.samples)


def test_a_summary_says_what_was_asked_and_of_whom() -> None:
    summary = run(Scripted(limits={"": Slo(ttft_s=9.0)}), requests=2, seed=7).summary
    assert summary.workload["seed"] == 7
    assert summary.workload["slo"][""]["ttft_s"] == 9.0
    assert summary.environment["server"]["model_revision"] == "r1"
    assert summary.environment["server"]["start_parameters"] is None
    assert {"system", "cpu", "cpus", "driver", "cuda", "gpus"} == set(summary.environment["host"])
    assert {"tercet", "git_revision", "python", "packages", "build_ids"} == set(summary.environment["software"])
