"""Figures of a load by its rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tercet.load.figures import percentile
from tercet.load.record import Row

from .measure import PERCENTILES

Rows = Sequence[Row]


def figure_of(measure_name: str, rows: Rows) -> tuple[float | None, str]:
    """What a measure says of rows, and of how many it is; None where none of them says anything."""
    kind, _, percent = measure_name.removesuffix("_ms").rpartition("_p")
    if kind in _VALUES and int(percent) in PERCENTILES:
        values = [value for row in rows if (value := _VALUES[kind](row)) is not None]
        return (percentile(values, int(percent)) if values else None), f"of {len(values)} requests"
    return _COUNTS[measure_name](rows)


def _ttft_ms(row: Row) -> float | None:
    return None if row.first_s is None else (row.first_s - row.due_s) * 1e3


def _e2e_ms(row: Row) -> float | None:
    return None if row.outcome != "completed" or row.slow_reader or row.end_s is None else (row.end_s - row.due_s) * 1e3


def _gap_ms(row: Row) -> float | None:
    if row.slow_reader or row.output_tokens < 2 or row.first_s is None or row.last_s is None:
        return None
    return (row.last_s - row.first_s) * 1e3 / (row.output_tokens - 1)


def _largest_gap_ms(row: Row) -> float | None:
    return None if row.slow_reader else row.largest_gap_ms


def _refused_ms(row: Row) -> float | None:
    return (
        None if row.outcome != "refused" or row.sent_s is None or row.end_s is None else (row.end_s - row.sent_s) * 1e3
    )


_VALUES: Mapping[str, Callable[[Row], float | None]] = {
    "ttft": _ttft_ms,
    "e2e": _e2e_ms,
    "gap": _gap_ms,
    "largest_gap": _largest_gap_ms,
    "refused": _refused_ms,
}


def _qualified_percent(rows: Rows) -> tuple[float | None, str]:
    # Nobody promises anything to who went away.
    return _percent(row.qualified for row in rows if row.outcome != "cancelled")


def _accepted_kept_percent(rows: Rows) -> tuple[float | None, str]:
    accepted = (row for row in rows if row.outcome not in ("refused", "cancelled") and row.sent_s is not None)
    return _percent(row.qualified for row in accepted)


def _failed_percent(rows: Rows) -> tuple[float | None, str]:
    return _percent(row.outcome == "failed" for row in rows if row.outcome != "cancelled")


def _untyped_refusals(rows: Rows) -> tuple[float | None, str]:
    refused = [row for row in rows if row.outcome == "refused"]
    untyped = [row for row in refused if row.reason.startswith("HTTP_") or row.retry_after_s is None]
    return (len(untyped) if refused else None), f"of {len(refused)} refusals"


def _percent(holds: Iterable[bool]) -> tuple[float | None, str]:
    found = list(holds)
    return (100 * sum(found) / len(found) if found else None), f"{sum(found)} of {len(found)} requests"


_COUNTS: Mapping[str, Callable[[Rows], tuple[float | None, str]]] = {
    "qualified_percent": _qualified_percent,
    "accepted_kept_percent": _accepted_kept_percent,
    "failed_percent": _failed_percent,
    "untyped_refusals": _untyped_refusals,
}
