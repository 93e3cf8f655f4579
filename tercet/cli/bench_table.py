"""What `tercet bench run` shows at its end: a block for each point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.table import Table

from tercet.cli.console import Output
from tercet.load.figures import Spread
from tercet.load.report.words import percent
from tercet.load.summary import MAX_LAG_MS, Goodput, PointSummary, Summary

_SPREADS = (
    ("first token", "ttft_ms"),
    ("per token behind it", "tpot_ms"),
    ("between messages", "gap_ms"),
    ("largest gap", "largest_gap_ms"),
    ("whole request", "e2e_ms"),
    ("in the queue", "queue_ms"),
    ("client late by", "client_lag_ms"),
)


def print_points(console: Output, summary: Summary) -> None:
    """All points."""
    for number, point in enumerate(summary.points):
        if number:
            console.print()
        for line in head(point):
            console.print(line, soft_wrap=True, markup=False)
        console.print_whole(latencies(point))
        if len(point.by_class) > 1:
            console.print_whole(shares("class", point.by_class))
        if len(point.by_tenant) > 1:
            console.print_whole(shares("tenant", point.by_tenant))
        if point.client_limited:
            console.print(
                f"the client was the limit: it sent more than {MAX_LAG_MS:g} ms late, or had no time left; use"
                " --processes, a lower rate, or another host",
                style="bold yellow",
                soft_wrap=True,
            )


def head(point: PointSummary) -> Iterator[str]:
    """How much was asked for and what became of it."""
    load = "" if point.offered_per_s is None else f", {point.offered_per_s:g} requests/s"
    warm = f" ({point.warm_up} of the warm-up left out)" if point.warm_up else ""
    yield f"point {point.point}{load}: {point.offered} requests in {point.duration_s:.1f} s{warm}"
    ends = ", ".join(f"{count} {outcome}" for outcome, count in point.outcomes.items() if count)
    yield f"  {ends or 'nothing was due'}; {point.qualified} qualified"
    for what, counts in (("refused", point.refusals), ("failed", point.failures), ("missed", point.missed)):
        if counts:
            yield f"  {what}: {', '.join(f'{count} {reason}' for reason, count in counts.items())}"
    yield (
        f"  accepted {point.accepted_per_s:.2f} requests/s, {point.accepted_tokens_per_s:,.0f} tokens/s; "
        f"qualified {point.qualified_per_s:.2f} requests/s, {point.qualified_tokens_per_s:,.0f} tokens/s"
    )
    if point.cached_tokens is not None and point.prompt_tokens:
        yield f"  {point.cached_tokens / point.prompt_tokens:.0%} of {point.prompt_tokens:,} prompt tokens were cached"
    if used := [*_used(point)]:
        yield f"  in use on the mean, and at most: {'; '.join(used)}"


def _used(point: PointSummary) -> Iterator[str]:
    for what, part in (
        ("KV blocks", point.kv_used_percent),
        ("processors of this host", point.host_cpu_percent),
        ("its GPUs", point.gpu_percent),
    ):
        if part is not None:
            yield f"{what} {percent(part.mean)} and {percent(part.max)}"


def latencies(point: PointSummary) -> Table:
    """A line for each figure, in milliseconds."""
    table = Table("  ms", "p50", "p95", "p99", "mean", "max", "of", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, field in _SPREADS:
        spread: Spread | None = getattr(point, field)
        if spread is not None:
            figures = (spread.p50, spread.p95, spread.p99, spread.mean, spread.max)
            table.add_row(f"  {name}", *(f"{figure:,.1f}" for figure in figures), f"{spread.count:,}")
    return table


def shares(what: str, groups: Mapping[str, Goodput]) -> Table:
    """A line for each class or tenant."""
    headings = ("offered", "accepted", "completed", "refused", "qualified", "qual./s", "tokens/s", "ttft p95")
    table = Table(f"  {what}", *headings, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, group in groups.items():
        counts = (group.offered, group.accepted, group.completed, group.refused, group.qualified)
        table.add_row(
            f"  {name or '(none)'}",
            *map(str, counts),
            f"{group.qualified_per_s:.2f}",
            f"{group.qualified_tokens_per_s:,.0f}",
            "-" if group.ttft_ms is None else f"{group.ttft_ms.p95:,.0f}",
        )
    return table
