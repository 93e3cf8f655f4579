"""The same loads on several servers, side by side. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tercet.load.figures import Spread
from tercet.load.summary import PointSummary

_HEAD = (
    "load", "server", "completed of offered", "qualified", "output tokens/s", "first token, ms", "per token, ms",
    "largest gap, ms", "whole request, ms", "client late by, ms",
)  # fmt: skip


def table(runs: Mapping[str, Mapping[str, Sequence[PointSummary]]]) -> Iterator[str]:
    """Lines of Markdown of `runs`: load, server, its points. Servers of one rate stand below each other; spreads are
    p50 and p95, of the client's lateness p99."""
    yield f"| {' | '.join(_HEAD)} |"
    yield f"|---|---|{'---:|' * (len(_HEAD) - 2)}"
    for load, servers in runs.items():
        for points in zip(*servers.values(), strict=True):
            for number, (server, point) in enumerate(zip(servers, points, strict=True)):
                rate = f"{load}, {point.offered_per_s or 0:g} requests/s" if number == 0 else ""
                yield f"| {' | '.join((rate, server, *_figures(point)))} |"


def _figures(point: PointSummary) -> Iterator[str]:
    yield f"{point.outcomes['completed']} of {point.offered}"
    yield f"{point.qualified}"
    yield f"{point.accepted_tokens_per_s:,.0f}"
    for spread in (point.ttft_ms, point.tpot_ms, point.largest_gap_ms, point.e2e_ms):
        yield _spread(spread)
    late = "-" if point.client_lag_ms is None else f"{point.client_lag_ms.p99:.1f}"
    yield f"{late}{' (the limit)' if point.client_limited else ''}"


def _spread(spread: Spread | None) -> str:
    """To three figures."""
    if spread is None:
        return "-"
    return " · ".join(f"{value:,.1f}" if value < 100 else f"{value:,.0f}" for value in (spread.p50, spread.p95))
