"""What is said of a run: figures of each point of its sweep, from rows and samples alone. Pure.

Rows of the warm-up are in no figure. Rates are over the time from the end of the warm-up until the last request was
over, so that what is served late does not count as if it had been served in time; and over no less than what the load
was to last.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .figures import Spread, spread
from .json_data import RunFileError, parsed
from .plain_file import open_plain
from .record import OUTCOMES, Row, Sample
from .tally import Tally
from .use import gpus, host_cpu, kv_used

VERSION = 1
# Of a summary that is read: that of a thousand points.
_MOST_BYTES = 64 << 20
# A client that is later than this with one request in a hundred has measured itself as well.
MAX_LAG_MS = 5.0
# And so has one whose loop has hardly a moment left.
MAX_LOOP_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests of one class or tenant."""

    offered: int
    accepted: int
    completed: int
    refused: int
    qualified: int
    accepted_per_s: float
    qualified_per_s: float
    accepted_tokens_per_s: float
    qualified_tokens_per_s: float
    ttft_ms: Spread | None


@dataclass(frozen=True, slots=True)
class PointSummary:
    """One load. Spreads are None where nothing was measured."""

    point: int
    # Requests a second that the schedule offers on the mean; None where it has no rate: all at once, closed, a trace.
    offered_per_s: float | None
    # From the end of the warm-up until the last request was over; and until no more were due.
    duration_s: float
    arrival_s: float
    offered: int
    # In the warm-up, left out of all the rest.
    warm_up: int
    # By outcome.
    outcomes: Mapping[str, int]
    # Of those completed, by the finish reason; of those refused and failed by the reason of the error.
    finish_reasons: Mapping[str, int]
    refusals: Mapping[str, int]
    failures: Mapping[str, int]
    # Of those completed but not qualified, by what they missed.
    missed: Mapping[str, int]
    # Completed, and missed nothing.
    qualified: int
    # From when a request was due, and from when it was sent.
    ttft_ms: Spread | None
    ttft_sent_ms: Spread | None
    e2e_ms: Spread | None
    e2e_sent_ms: Spread | None
    # Of requests with several tokens: from the first to the last, by the number of tokens behind the first.
    tpot_ms: Spread | None
    # Over all gaps of all requests; and over the largest one of each.
    gap_ms: Spread | None
    largest_gap_ms: Spread | None
    # In the server's queue, where it says so.
    queue_ms: Spread | None
    accepted_per_s: float
    qualified_per_s: float
    # Of accepted and of qualified requests: output tokens.
    accepted_tokens_per_s: float
    qualified_tokens_per_s: float
    # Of accepted requests, and how many of these a prefix cache had; None: nobody says.
    prompt_tokens: int
    cached_tokens: int | None
    by_class: Mapping[str, Goodput]
    by_tenant: Mapping[str, Goodput]
    # By how much requests were sent later than they were due.
    client_lag_ms: Spread | None
    # The client was late itself, or its loop had no moment left: its figures are not the server's alone.
    client_limited: bool
    # Sizes of gaps in milliseconds, and how often each came.
    gap_counts: tuple[tuple[float, int], ...] = ()
    # Percent of the server's KV blocks that requests held, of this host's processors and of the time of its GPUs, over
    # samples; None: nobody says.
    kv_used_percent: Spread | None = None
    host_cpu_percent: Spread | None = None
    gpu_percent: Spread | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole run."""

    version: int
    # As it was typed, without keys.
    command: str
    workload: Mapping[str, Any]
    environment: Mapping[str, Any]
    points: tuple[PointSummary, ...]
    # It was broken off: points that were to follow are missing.
    interrupted: bool = False


def summarize(
    rows: Sequence[Row],
    samples: Iterable[Sample],
    gaps: Tally,
    *,
    point: int,
    offered_per_s: float | None,
    warm_up_s: float,
    until_s: float = 0.0,
) -> PointSummary:
    """The figures of one point. `gaps` has those of all rows that are neither of the warm-up nor of slow readers;
    `until_s` is when no more were to be due, 0 where no time said so."""
    left = [row for row in rows if not row.warm_up]
    due = max([warm_up_s, until_s, *(row.due_s for row in left)])
    duration_s = max([due, *(row.end_s for row in left if row.end_s is not None)]) - warm_up_s
    accepted = [row for row in left if _is_accepted(row)]
    completed = [row for row in left if row.outcome == "completed"]
    smooth = [row for row in left if not row.slow_reader]
    lag = spread((row.sent_s - row.due_s) * 1e3 for row in left if row.sent_s is not None)
    seen = [sample for sample in samples if sample.point == point]
    shares = sorted(sample.client.cpu_share for sample in seen)
    total = goodput(left, duration_s)
    cached = [row.cached_tokens for row in accepted if row.cached_tokens is not None]
    outcomes = Counter(row.outcome for row in left)
    return PointSummary(
        point=point,
        offered_per_s=offered_per_s,
        duration_s=duration_s,
        arrival_s=due - warm_up_s,
        offered=len(left),
        warm_up=len(rows) - len(left),
        outcomes={outcome: outcomes[outcome] for outcome in OUTCOMES},
        finish_reasons=_counted(row.reason for row in completed),
        refusals=_counted(row.reason for row in left if row.outcome == "refused"),
        failures=_counted(row.reason for row in left if row.outcome == "failed"),
        missed=_counted(row.missed for row in completed if row.missed),
        qualified=total.qualified,
        ttft_ms=total.ttft_ms,
        ttft_sent_ms=spread(_ms(row.sent_s, row.first_s) for row in left if row.first_s is not None),
        e2e_ms=spread(_ms(row.due_s, row.end_s) for row in completed if not row.slow_reader),
        e2e_sent_ms=spread(_ms(row.sent_s, row.end_s) for row in completed if not row.slow_reader),
        tpot_ms=spread(
            _ms(row.first_s, row.last_s) / (row.output_tokens - 1)
            for row in completed
            if row.output_tokens > 1 and not row.slow_reader and row.first_s is not None
        ),
        gap_ms=gaps.spread(),
        largest_gap_ms=spread(row.largest_gap_ms for row in smooth if row.largest_gap_ms is not None),
        queue_ms=spread(row.queue_s * 1e3 for row in left if row.queue_s is not None),
        accepted_per_s=total.accepted_per_s,
        qualified_per_s=total.qualified_per_s,
        accepted_tokens_per_s=total.accepted_tokens_per_s,
        qualified_tokens_per_s=total.qualified_tokens_per_s,
        prompt_tokens=sum(row.prompt_tokens for row in accepted),
        cached_tokens=sum(cached) if cached else None,
        by_class=_by(left, duration_s, [row.traffic_class for row in left]),
        by_tenant=_by(left, duration_s, [row.tenant for row in left]),
        client_lag_ms=lag,
        client_limited=(lag is not None and lag.p99 > MAX_LAG_MS)
        or (bool(shares) and shares[len(shares) // 2] > MAX_LOOP_SHARE),
        gap_counts=gaps.pairs(),
        kv_used_percent=_use(kv_used, seen, warm_up_s),
        host_cpu_percent=_use(host_cpu, seen, warm_up_s),
        gpu_percent=_use(gpus, seen, warm_up_s),
    )


def goodput(rows: Sequence[Row], duration_s: float) -> Goodput:
    """Of rows without those of the warm-up."""
    accepted = [row for row in rows if _is_accepted(row)]
    qualified = [row for row in rows if row.qualified]

    def per_s(count: int) -> float:
        return count / duration_s if duration_s > 0 else 0.0

    return Goodput(
        offered=len(rows),
        accepted=len(accepted),
        completed=sum(row.outcome == "completed" for row in rows),
        refused=sum(row.outcome == "refused" for row in rows),
        qualified=len(qualified),
        accepted_per_s=per_s(len(accepted)),
        qualified_per_s=per_s(len(qualified)),
        accepted_tokens_per_s=per_s(sum(row.output_tokens for row in accepted)),
        qualified_tokens_per_s=per_s(sum(row.output_tokens for row in qualified)),
        ttft_ms=spread(_ms(row.due_s, row.first_s) for row in rows if row.first_s is not None),
    )


def write_summary(path: Path, summary: Summary) -> None:
    """All at once, so that one that was there stays where this cannot be. Raises OSError."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(dataclasses.asdict(summary), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(path)


def read_summary(path: Path) -> Summary:
    """Raises RunFileError, OSError."""
    try:
        with open_plain(path, _MOST_BYTES) as file:
            summary = parsed(Summary, file.read())
    except RunFileError as error:
        raise RunFileError(f"{path}: {error}") from None
    if summary.version > VERSION:
        raise RunFileError(f"{path} is of version {summary.version}; this reads up to {VERSION}")
    return summary


def _use(part: Callable[[Sample], float | None], seen: Iterable[Sample], warm_up_s: float) -> Spread | None:
    return spread(used for sample in seen if sample.at_s >= warm_up_s and (used := part(sample)) is not None)


def _is_accepted(row: Row) -> bool:
    # One that was never sent was neither.
    return row.outcome != "refused" and row.sent_s is not None


def _by(rows: Sequence[Row], duration_s: float, names: Sequence[str]) -> dict[str, Goodput]:
    groups: dict[str, list[Row]] = {}
    for row, name in zip(rows, names, strict=True):
        groups.setdefault(name, []).append(row)
    return {name: goodput(groups[name], duration_s) for name in sorted(groups)}


def _ms(since: float | None, until: float | None) -> float:
    assert since is not None
    assert until is not None
    return (until - since) * 1e3


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())
