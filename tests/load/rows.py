"""Rows and samples of runs that never were."""

from __future__ import annotations

import dataclasses
from typing import Any

from tercet.load.record import ClientSample, GpuSample, Row, Sample, ServerSample, WorkerSample

DONE = Row(
    point=0, index=0, request_id="r-0", tenant="alice", traffic_class="interactive", priority=0, prompt_tokens=100,
    max_tokens=11, due_s=1.0, sent_s=1.002, first_s=1.5, last_s=2.5, end_s=2.6, outcome="completed", reason="length",
    output_tokens=11, gap_p50_ms=100.0, gap_p95_ms=100.0, gap_p99_ms=100.0, largest_gap_ms=100.0, retry_after_s=None,
    cached_tokens=64, warm_up=False, slow_reader=False, qualified=True, missed="", queue_s=0.25,
)  # fmt: skip
REFUSED = dataclasses.replace(
    DONE, first_s=None, last_s=None, end_s=1.01, outcome="refused", reason="QUEUE_FULL", output_tokens=0,
    gap_p50_ms=None, gap_p95_ms=None, gap_p99_ms=None, largest_gap_ms=None, retry_after_s=2.0, cached_tokens=None,
    qualified=False, queue_s=None,
)  # fmt: skip


def done(index: int, **changes: Any) -> Row:
    return dataclasses.replace(DONE, index=index, request_id=f"r-{index}", **changes)


def refused(index: int, **changes: Any) -> Row:
    return dataclasses.replace(REFUSED, index=index, request_id=f"r-{index}", **changes)


def sample(at_s: float, *, point: int = 0, cpu_share: float = 0.1) -> Sample:
    worker = WorkerSample("127.0.0.1:50053", True, 3, 10, 20, 30, 120.0)
    server = ServerSample(2, 3, 10, 20, 30, 120.0, (worker,))
    return Sample(
        point, at_s, ClientSample(5, 9, 4, 0.7, cpu_share), server, 0.9, (GpuSample(0, 0.5, 300.0, 1 << 30, 1980),)
    )
