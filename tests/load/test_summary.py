"""Figures of a point, from rows that are known."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tercet.load.json_data import RunFileError
from tercet.load.record import Row, Sample
from tercet.load.summary import VERSION, PointSummary, Summary, read_summary, summarize, write_summary
from tercet.load.tally import Tally
from tests.load.rows import done, refused, sample


def summary_of(rows: list[Row], samples: list[Sample] | None = None, *, warm_up_s: float = 0.0) -> PointSummary:
    gaps = Tally()
    for _ in range(10):
        gaps.add(100.0)
    return summarize(rows, samples or [], gaps, point=0, offered_per_s=2.0, warm_up_s=warm_up_s)


def test_each_outcome_is_counted_once_and_latencies_count_from_the_due_time() -> None:
    rows = [
        done(0),
        done(1, qualified=False, missed="ttft", tenant="bob"),
        refused(2, traffic_class="batch"),
        done(3, outcome="cancelled", reason="", qualified=False, end_s=2.0),
        done(4, outcome="failed", reason="WORKER_LOST", qualified=False, first_s=None, last_s=None, end_s=3.0),
    ]
    found = summary_of(rows, warm_up_s=0.5)
    assert found.outcomes == {"completed": 2, "refused": 1, "cancelled": 1, "failed": 1}
    assert (found.refusals, found.failures) == ({"QUEUE_FULL": 1}, {"WORKER_LOST": 1})
    assert (found.finish_reasons, found.missed) == ({"length": 2}, {"ttft": 1})
    assert found.duration_s == pytest.approx(2.5)
    assert found.arrival_s == pytest.approx(0.5)
    assert found.accepted_per_s == pytest.approx(4 / 2.5)
    assert found.qualified_per_s == pytest.approx(1 / 2.5)
    assert found.qualified_tokens_per_s == pytest.approx(11 / 2.5)
    assert found.ttft_ms is not None
    assert found.ttft_sent_ms is not None
    assert (found.ttft_ms.count, found.ttft_ms.p50) == (3, pytest.approx(500.0))
    assert found.ttft_sent_ms.p50 == pytest.approx(498.0)
    assert found.e2e_ms is not None
    assert (found.e2e_ms.count, found.e2e_ms.max) == (2, pytest.approx(1600.0))
    assert found.tpot_ms is not None
    assert found.tpot_ms.mean == pytest.approx(100.0)
    assert found.queue_ms is not None
    assert found.queue_ms.mean == pytest.approx(250.0)
    assert set(found.by_class) == {"batch", "interactive"}
    assert (found.by_class["batch"].refused, found.by_class["batch"].ttft_ms) == (1, None)
    assert (found.by_tenant["bob"].completed, found.by_tenant["bob"].qualified) == (1, 0)
    assert (found.prompt_tokens, found.cached_tokens) == (400, 256)


def test_the_warm_up_is_in_no_figure() -> None:
    rows = [done(0, warm_up=True, due_s=0.0, first_s=9.0, end_s=9.0), done(1, due_s=1.0)]
    found = summary_of(rows, warm_up_s=1.0)
    assert (found.offered, found.warm_up) == (1, 1)
    assert found.duration_s == pytest.approx(1.6)
    assert found.ttft_ms is not None
    assert found.ttft_ms.max == pytest.approx(500.0)


def test_slow_readers_are_in_no_figure_that_they_make_themselves() -> None:
    rows = [done(0), done(1, slow_reader=True, largest_gap_ms=9000.0, last_s=90.0, end_s=90.0)]
    found = summary_of(rows)
    for each in (found.largest_gap_ms, found.tpot_ms, found.e2e_ms):
        assert each is not None
        assert each.count == 1
    assert found.outcomes["completed"] == 2


@pytest.mark.parametrize(
    ("lag_s", "share", "limited"), [(0.004, 0.5, False), (0.006, 0.5, True), (0.0, 0.95, True), (0.0, 0.85, False)]
)
def test_a_client_that_was_the_limit_is_told(lag_s: float, share: float, limited: bool) -> None:
    found = summary_of([done(0, sent_s=1.0 + lag_s)], [sample(at, cpu_share=share) for at in (1.0, 2.0, 3.0)])
    assert found.client_limited is limited


def test_what_is_in_use_is_told_without_the_warm_up_and_other_points() -> None:
    idle = sample(2.0)
    idle = dataclasses.replace(idle, server=None, host_cpu=0.3, gpus=())
    found = summary_of([done(0)], [sample(0.5), sample(1.5), idle, sample(1.5, point=1)], warm_up_s=1.0)
    assert found.kv_used_percent is not None
    assert (found.kv_used_percent.count, found.kv_used_percent.mean) == (1, pytest.approx(100 / 6))
    assert found.host_cpu_percent is not None
    assert (found.host_cpu_percent.count, found.host_cpu_percent.mean) == (2, pytest.approx(60))
    assert found.gpu_percent is not None
    assert (found.gpu_percent.count, found.gpu_percent.max) == (1, 50)


def test_of_nothing_all_figures_are_none() -> None:
    found = summarize([], [], Tally(), point=3, offered_per_s=None, warm_up_s=2.0)
    assert (found.offered, found.duration_s, found.qualified_per_s) == (0, 0.0, 0.0)
    assert found.ttft_ms is found.gap_ms is found.client_lag_ms is found.cached_tokens is None
    assert found.kv_used_percent is found.host_cpu_percent is found.gpu_percent is None


def test_a_summary_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    written = Summary(VERSION, "tercet bench run", {"seed": 1}, {"cpu": None}, (summary_of([done(0), refused(1)]),))
    write_summary(path, written)
    assert read_summary(path) == written
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": VERSION + 1}))
    with pytest.raises(RunFileError, match=f"of version {VERSION + 1}"):
        read_summary(path)
    path.write_text("[]")
    with pytest.raises(RunFileError, match="not an object"):
        read_summary(path)
