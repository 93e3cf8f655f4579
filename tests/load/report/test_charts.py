"""What plots show, and say, of runs whose figures are known."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tercet.load.folder import Run
from tercet.load.record import ClientSample, GpuSample, Row, Sample, ServerSample
from tercet.load.report.chart import Bars, Chart, Missing, averaged, spread_out, thinned
from tercet.load.report.charts import charts, kept_up_to, knee_of

from .made_run import refused, row, run

SERVER = ServerSample(queued=3, running=8, kv_used=25, kv_cached=25, kv_free=50, tokens_per_s=400.0, workers=())


def sample(at_s: float, point: int = 0, server: ServerSample | None = SERVER, **changes: Any) -> Sample:
    client = ClientSample(running=11, sent=20, finished=9, loop_lag_ms=0.2, cpu_share=0.1)
    made = Sample(point, at_s, client, server, host_cpu=0.5)
    return dataclasses.replace(made, **changes)


def point_rows(point: int, ttft_s: float, count: int = 40, **changes: Any) -> list[Row]:
    return [row(at, at * 0.1, ttft_s, point=point, **changes) for at in range(count)]


def sweep() -> Run:
    """Four loads, of which the third still keeps its promises and the fourth does not."""
    loads = [(1.0, 0.1), (2.0, 0.11), (4.0, 0.15), (8.0, 2.0)]
    rows = [each for point, (_, ttft_s) in enumerate(loads) for each in
            point_rows(point, ttft_s, qualified=ttft_s < 1)]  # fmt: skip
    samples = [sample(at, point) for point in range(len(loads)) for at in (1.0, 2.0)]
    return run(rows, samples, rates=[rate for rate, _ in loads])


def plots(made: Run) -> dict[str, Any]:
    return {each.key: each for each in charts(made)}


def test_latency_against_load_has_its_knee() -> None:
    latency = plots(sweep())["latency"]
    assert [line.label for line in latency.lines] == ["p50", "p95", "p99"]
    assert latency.lines[1].points == [pytest.approx(each) for each in [(1, 100), (2, 110), (4, 150), (8, 2_000)]]
    (knee,) = latency.marks
    assert (knee.label, knee.at) == ("knee", 4.0)
    assert "within 100 ms at 1 requests a second, within 2 s at 8. The knee is at 4" in latency.sentence


def test_goodput_tells_offered_from_accepted_and_qualified() -> None:
    goodput = plots(sweep())["goodput"]
    offered, accepted, qualified = goodput.lines
    assert offered.points == [(1, 1), (2, 2), (4, 4), (8, 8)]
    assert qualified.points[-1] == (8, 0)
    assert accepted.points[-1][1] > 5
    (mark,) = goodput.marks
    assert (mark.label, mark.at) == ("95 % qualified", 4.0)
    assert kept_up_to(sweep().summary.points) == 4.0
    classes = run(
        [*point_rows(0, 0.1), *point_rows(1, 0.1), *point_rows(1, 0.1, traffic_class="batch")], rates=(1.0, 2.0)
    )
    labels = [line.label for line in plots(classes)["goodput"].lines]
    assert labels[3:] == ["qualified, batch", "qualified, interactive"]


def test_distributions_rise_to_all() -> None:
    made = plots(sweep())
    for key in ("ttft", "gap", "lag"):
        lines = made[key].lines
        assert [line.label for line in lines] == ["1/s", "2/s", "4/s", "8/s"]
        for line in lines:
            assert [y for _, y in line.points] == sorted(y for _, y in line.points)
            assert (line.points[0][1], line.points[-1][1]) == (0, 100)
    assert made["ttft"].lines[3].points[-1][0] == pytest.approx(2_000)
    assert made["ttft"].sentence == "At 8/s, half of 40 requests had their first token within 2 s, all within 2 s."
    # Of many loads six are shown, with the first and the last.
    many = run(
        [each for point in range(20) for each in point_rows(point, 0.1, 5)], rates=[1.0 + at for at in range(20)]
    )
    labels = [line.label for line in plots(many)["ttft"].lines]
    assert (len(labels), labels[0], labels[-1]) == (6, "1/s", "20/s")


def test_a_late_client_is_said_to_be() -> None:
    made = sweep()
    assert plots(made)["lag"].sentence == "At no load were more than one in 100 requests sent more than 1 ms late."
    late = run([dataclasses.replace(each, sent_s=each.due_s + 0.02) for each in made.rows], rates=(1.0, 2.0, 4.0, 8.0))
    lag = plots(late)["lag"]
    assert lag.sentence == "The client was the limit at 1/s, 2/s, 4/s and 8/s."
    assert lag.marks[0].at == 5


def test_time_goes_on_from_load_to_load() -> None:
    made = plots(sweep())
    requests = made["requests"]
    assert [line.label for line in requests.lines] == ["sent, not over", "running", "in the queue"]
    assert requests.lines[2].points == [(at, 3) for at in (1, 2, 3, 4, 5, 6, 7, 8)]
    assert [(mark.label, mark.at) for mark in requests.marks] == [("1/s", 0), ("2/s", 2), ("4/s", 4), ("8/s", 6)]
    assert [line.points[0][1] for line in made["kv"].lines] == [25, 50]
    assert made["kv"].sentence == "Requests held at most 25 % of the KV blocks."
    assert made["throughput"].sentence == "The server computed at most 400 tokens a second."
    one = run(point_rows(0, 0.1), [sample(1.0), sample(2.0)])
    assert plots(one)["requests"].marks == []


def test_gpus_are_shown_where_there_are_any() -> None:
    gpus = tuple(GpuSample(at, use, None, None, None) for at, use in enumerate((0.5, 1.0, None)))
    made = run(point_rows(0, 0.1), [sample(1.0, gpus=gpus)])
    processors = plots(made)["processors"]
    assert [line.label for line in processors.lines] == ["client, of one processor", "this host", "GPUs"]
    assert processors.lines[2].points == [(1, 75)]
    assert "its GPUs were busy for 75 % of the time" in processors.sentence


def test_a_server_that_does_not_tell() -> None:
    made = plots(run(point_rows(0, 0.1), [sample(1.0, server=None)]))
    assert [line.label for line in made["requests"].lines] == ["sent, not over"]
    assert "queue" not in made["requests"].sentence
    for key in ("kv", "throughput"):
        assert made[key] == Missing(key, made[key].title, "The server did not tell, or not to this client.")
    none = plots(run(point_rows(0, 0.1)))
    assert {none[key].sentence for key in ("requests", "kv", "throughput", "processors")} == {"The run has no samples."}


def test_one_load_has_no_curve() -> None:
    made = plots(run([*point_rows(0, 0.1), *point_rows(0, 0.1, traffic_class="batch", qualified=False)]))
    assert isinstance(made["latency"], Missing)
    goodput = made["goodput"]
    assert isinstance(goodput, Bars)
    assert [name for name, _ in goodput.bars] == ["accepted", "qualified", "qualified, batch", "qualified, interactive"]
    closed = plots(run([*point_rows(0, 0.1), *point_rows(1, 0.1)], rates=(None, None)))
    assert isinstance(closed["latency"], Missing)
    assert [name for name, _ in closed["goodput"].bars] == [
        "point 0: accepted", "point 0: qualified", "point 1: accepted", "point 1: qualified",
    ]  # fmt: skip
    assert [line.label for line in closed["ttft"].lines] == ["point 0", "point 1"]


def test_reasons_of_refusals_and_failures() -> None:
    rows = [*(refused(at) for at in range(3)), row(3, outcome="failed", reason="WORKER_LOST"), row(4)]
    bars = plots(run(rows))["refusals"]
    assert bars.bars == [("refused: QUEUE_FULL", 3), ("failed: WORKER_LOST", 1)]
    assert bars.sentence == "4 of 5 requests were refused or failed, 3 of these refused: QUEUE_FULL."
    assert plots(run([row()]))["refusals"].sentence == "None was."


@pytest.mark.parametrize("rows", [[], [refused()], [row(sent_s=None, first_s=None, end_s=None, outcome="failed")]])
def test_nothing_to_show_is_said(rows: list[Row]) -> None:
    for plot in charts(run(rows)):
        assert plot.sentence.endswith((".", "…"))
        assert isinstance(plot, Missing | Bars | Chart)
        if isinstance(plot, Chart):
            assert all(line.points for line in plot.lines)


def test_knees_are_of_what_was_served() -> None:
    assert knee_of(run([refused()]).summary.points) is None
    assert kept_up_to(run([]).summary.points) is None
    assert kept_up_to(run([row()], rates=(None,)).summary.points) is None


def test_fewer_points_of_many() -> None:
    points = [(float(at), float(at % 7)) for at in range(1_000)]
    some = thinned(points, 100)
    assert (len(some), some[0], some[-1]) == (100, points[0], points[-1])
    means = averaged(points, 100)
    assert len(means) == 100
    assert sum(y for _, y in means) / 100 == pytest.approx(sum(y for _, y in points) / 1_000)
    assert thinned(points[:5]) == averaged(points[:5]) == points[:5]
    assert spread_out(3) == [0, 1, 2]
    assert spread_out(11, 6) == [0, 2, 4, 6, 8, 10]
