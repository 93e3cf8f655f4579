"""What became of a request, as its row. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .exchange import Exchange
from .figures import gaps, percentile
from .record import Outcome, Row
from .slo import Slo, slo_of
from .target import DEADLINE

# Its reason: it was not over when the client's patience was.
UNFINISHED = "UNFINISHED"


def gaps_ms(seen: Exchange) -> list[float]:
    """Milliseconds between messages with tokens."""
    return [gap * 1e3 for gap in gaps(seen.moments)]


def row_of(seen: Exchange, between_ms: Sequence[float], point: int, limits: Mapping[str, Slo], warm_up_s: float) -> Row:
    """The row of one that is over; `between_ms` are its gaps."""
    ask, principal = seen.ask, seen.ask.principal
    between_ms = sorted(round(gap, 4) for gap in between_ms)
    outcome, reason = _outcome(seen)
    first = seen.moments[0] if seen.moments else None
    last = seen.moments[-1] if seen.moments else None
    tokens = seen.tokens if seen.ended is None else _known(seen.ended.output_tokens, seen.tokens)
    slow = ask.read_tokens_per_s is not None
    missed = "deadline" if reason == DEADLINE else ""
    if outcome == "completed":
        missed = slo_of(limits, principal.traffic_class).missed(
            None if first is None else first - seen.due_s,
            # What a slow reader waits for is itself.
            None if slow or first is None or last is None or tokens < 2 else (last - first) / (tokens - 1),
            None if slow or not between_ms else max(between_ms) / 1e3,
            None if slow or seen.end_s is None else seen.end_s - seen.due_s,
        )
    return Row(
        point=point,
        index=ask.index,
        request_id=seen.begun.request_id if seen.begun is not None else "",
        tenant=principal.tenant,
        traffic_class=principal.traffic_class,
        priority=principal.priority,
        prompt_tokens=_prompt_tokens(seen),
        max_tokens=ask.max_tokens,
        due_s=round(seen.due_s, 6),
        sent_s=_short(seen.sent_s),
        first_s=_short(first),
        last_s=_short(last),
        end_s=_short(seen.end_s),
        outcome=outcome,
        reason=reason,
        output_tokens=tokens,
        gap_p50_ms=_percentile(between_ms, 50),
        gap_p95_ms=_percentile(between_ms, 95),
        gap_p99_ms=_percentile(between_ms, 99),
        largest_gap_ms=max(between_ms, default=None),
        retry_after_s=None if seen.error is None else seen.error.retry_after_s,
        cached_tokens=None if seen.ended is None else seen.ended.cached_tokens,
        warm_up=seen.due_s < warm_up_s,
        slow_reader=slow,
        qualified=outcome == "completed" and not missed,
        missed=missed,
        queue_s=None if seen.ended is None else seen.ended.queue_s,
    )


def _outcome(seen: Exchange) -> tuple[Outcome, str]:
    if seen.cancelled:
        return "cancelled", ""
    if seen.ended is not None:
        return "completed", seen.ended.finish_reason
    if seen.error is not None:
        return ("refused" if seen.error.refused else "failed"), seen.error.reason
    return "failed", UNFINISHED


def _prompt_tokens(seen: Exchange) -> int:
    """As the server says, else as they were made; 0 where nobody knows."""
    for said in (seen.ended, seen.begun):
        if said is not None and said.prompt_tokens is not None:
            return said.prompt_tokens
    return seen.ask.prompt_tokens or 0


def _known(said: int | None, counted: int) -> int:
    return counted if said is None else said


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return percentile(values, percent) if values else None


def _short(seconds: float | None) -> float | None:
    """To the microsecond."""
    return None if seconds is None else round(seconds, 6)
