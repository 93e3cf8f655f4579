"""Runs as `tercet bench run` records them, of requests whose times a test decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tercet.load.folder import Run
from tercet.load.record import Row, Sample
from tercet.load.summary import VERSION, Summary, summarize
from tercet.load.tally import Tally

WORKLOAD = {"arrivals": "poisson", "seed": 1}
ENVIRONMENT = {"model": {"name": "small", "revision": "v1"}, "git": "abc"}

ROW = Row(
    point=0, index=0, request_id="r0", tenant="acme", traffic_class="interactive", priority=0, prompt_tokens=100,
    max_tokens=64, due_s=0.0, sent_s=0.001, first_s=0.201, last_s=0.701, end_s=0.701, outcome="completed",
    reason="length", output_tokens=11, gap_p50_ms=50.0, gap_p95_ms=50.0, gap_p99_ms=50.0, largest_gap_ms=50.0,
    retry_after_s=None, cached_tokens=0, warm_up=False, slow_reader=False, qualified=True, missed="",
)  # fmt: skip


def row(index: int = 0, due_s: float = 0.0, ttft_s: float = 0.2, gap_s: float = 0.05, **changes: Any) -> Row:
    """One that was sent a millisecond late, and got a token each `gap_s` from `ttft_s` on."""
    tokens = changes.get("output_tokens", ROW.output_tokens)
    first = due_s + ttft_s
    last = first + gap_s * (tokens - 1)
    gap = gap_s * 1e3
    made = dataclasses.replace(
        ROW, index=index, request_id=f"r{index}", due_s=due_s, sent_s=due_s + 0.001, first_s=first, last_s=last,
        end_s=last, gap_p50_ms=gap, gap_p95_ms=gap, gap_p99_ms=gap, largest_gap_ms=gap,
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def refused(index: int = 0, due_s: float = 0.0, reason: str = "QUEUE_FULL", **changes: Any) -> Row:
    """At the door, after two milliseconds."""
    nothing = dict.fromkeys(("first_s", "last_s", "gap_p50_ms", "gap_p95_ms", "gap_p99_ms", "largest_gap_ms"))
    values: dict[str, Any] = {
        **nothing, "end_s": due_s + 0.002, "outcome": "refused", "reason": reason, "output_tokens": 0,
        "cached_tokens": None, "qualified": False,
    }  # fmt: skip
    return row(index, due_s, **{**values, **changes})


def run(
    rows: Sequence[Row],
    samples: Sequence[Sample] = (),
    *,
    rates: Sequence[float | None] = (10.0,),
    workload: Mapping[str, Any] = WORKLOAD,
    environment: Mapping[str, Any] = ENVIRONMENT,
    warm_up_s: float = 0.0,
) -> Run:
    """One point for each of `rates`."""
    points = []
    for point, rate in enumerate(rates):
        mine = [row for row in rows if row.point == point]
        gaps = Tally()
        for each in mine:
            if each.largest_gap_ms is not None and not each.warm_up:
                gaps.add(each.largest_gap_ms)
        points.append(summarize(mine, samples, gaps, point=point, offered_per_s=rate, warm_up_s=warm_up_s))
    summary = Summary(VERSION, "tercet bench run", workload, environment, tuple(points))
    return Run(summary, tuple(rows), tuple(samples))


def random_rows(
    seed: int,
    count: int,
    *,
    schedule: int | None = None,
    slower: float = 1.0,
    rate: float = 10.0,
    point: int = 0,
    carried: float = 0.0,
) -> list[Row]:
    """Poisson arrivals, log-normal times, a few refused. `schedule`: the seed of what is asked for. `carried`: how much
    of the surprise of one request's first token is in the next one's."""
    asked = np.random.default_rng([1, seed if schedule is None else schedule])
    answered = np.random.default_rng([2, seed])
    due = np.cumsum(asked.exponential(1 / rate, count))
    tokens = asked.integers(5, 50, count)
    ttft = 0.2 * np.exp(0.5 * _carried(answered.normal(size=count), carried)) * slower
    gap = 0.02 * np.exp(0.3 * answered.normal(size=count)) * slower
    out = answered.random(count) < 0.02
    return [
        refused(at, float(due[at]), point=point)
        if out[at]
        else row(
            at,
            float(due[at]),
            float(ttft[at]),
            float(gap[at]),
            output_tokens=int(tokens[at]),
            point=point,
            qualified=bool(ttft[at] < 0.5),
        )
        for at in range(count)
    ]


def _carried(news: np.ndarray[Any, np.dtype[np.float64]], share: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A series of variance 1 each of whose values has so much of the one before."""
    values = news.copy()
    for at in range(1, len(values)):
        values[at] = share * values[at - 1] + (1 - share**2) ** 0.5 * news[at]
    return values
