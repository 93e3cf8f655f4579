"""The rows of one point as columns, and the figures that are taken of them. Pure.

The figures are those of the point's summary, by the same definitions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tercet.load.record import Row

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Percentile: of what requests took. Share: of all offered. Rate: a second, of what is counted when a request is over.
Kind = Literal["percentile", "share", "rate"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a table. `column` is one of Columns; `percent` is of percentiles alone."""

    name: str
    unit: str
    kind: Kind
    column: str
    lower_is_better: bool
    percent: float = 0.0


@dataclass(frozen=True, slots=True)
class Columns:
    """Requests of one point without those of the warm-up, in the order of their indexes: each array is [requests].
    Milliseconds are NaN where nothing was measured, or where it counts in no figure."""

    index: Ints
    due_s: Floats
    # NaN: it never was over.
    end_s: Floats
    prompt_tokens: Ints
    max_tokens: Ints
    ttft_ms: Floats
    tpot_ms: Floats
    largest_gap_ms: Floats
    e2e_ms: Floats
    # Of these 0 or 1; then output tokens, if the request is that.
    accepted: Ints
    qualified: Ints
    refused: Ints
    failed: Ints
    accepted_tokens: Ints
    qualified_tokens: Ints
    # What rates are counted over: from when, and for how long.
    begin_s: float
    duration_s: float

    def __len__(self) -> int:
        return len(self.index)


def _percentiles(name: str, column: str) -> tuple[Figure, ...]:
    return tuple(
        Figure(f"{name} p{percent}", "ms", "percentile", column, lower_is_better=True, percent=percent)
        for percent in (50, 95, 99)
    )


FIGURES: tuple[Figure, ...] = (
    *_percentiles("TTFT", "ttft_ms"),
    *_percentiles("TPOT", "tpot_ms"),
    *_percentiles("largest gap", "largest_gap_ms"),
    *_percentiles("end to end", "e2e_ms"),
    Figure("accepted", "requests/s", "rate", "accepted", lower_is_better=False),
    Figure("qualified", "requests/s", "rate", "qualified", lower_is_better=False),
    Figure("accepted output", "tokens/s", "rate", "accepted_tokens", lower_is_better=False),
    Figure("qualified output", "tokens/s", "rate", "qualified_tokens", lower_is_better=False),
    Figure("qualified of offered", "%", "share", "qualified", lower_is_better=False),
    Figure("refused of offered", "%", "share", "refused", lower_is_better=True),
    Figure("failed of offered", "%", "share", "failed", lower_is_better=True),
)


def to_columns(rows: Iterable[Row], begin_s: float, duration_s: float) -> Columns:
    """`rows` of one point; `begin_s` is the end of its warm-up, and `duration_s` the one of its summary."""
    kept = sorted((row for row in rows if not row.warm_up), key=lambda row: row.index)
    end_s = _floats([row.end_s for row in kept])
    accepted = [row.outcome != "refused" and row.sent_s is not None for row in kept]
    return Columns(
        index=_ints([row.index for row in kept]),
        due_s=_floats([row.due_s for row in kept]),
        end_s=end_s,
        prompt_tokens=_ints([row.prompt_tokens for row in kept]),
        max_tokens=_ints([row.max_tokens for row in kept]),
        ttft_ms=_floats([_ms(row.due_s, row.first_s) for row in kept]),
        tpot_ms=_floats([_tpot_ms(row) for row in kept]),
        largest_gap_ms=_floats([None if row.slow_reader else row.largest_gap_ms for row in kept]),
        e2e_ms=_floats([_ms(row.due_s, row.end_s) if _is_measured(row) else None for row in kept]),
        accepted=_ints(accepted),
        qualified=_ints([row.qualified for row in kept]),
        refused=_ints([row.outcome == "refused" for row in kept]),
        failed=_ints([row.outcome == "failed" for row in kept]),
        accepted_tokens=_ints([row.output_tokens * yes for row, yes in zip(kept, accepted, strict=True)]),
        qualified_tokens=_ints([row.output_tokens * row.qualified for row in kept]),
        begin_s=begin_s,
        duration_s=duration_s,
    )


def figure_of(columns: Columns, figure: Figure) -> float | None:
    """In the figure's unit. None where nothing was measured."""
    values = getattr(columns, figure.column)
    if figure.kind == "percentile":
        measured = np.sort(values[~np.isnan(values)])
        return float(measured[rank(len(measured), figure.percent) - 1]) if len(measured) else None
    total = float(values.sum())
    if figure.kind == "share":
        return 100 * total / len(columns) if len(columns) else None
    return total / columns.duration_s if columns.duration_s > 0 else None


def rank(count: int, percent: float) -> int:
    """Of the smallest value that so many percent of `count` values do not exceed; the first is 1."""
    return max(1, math.ceil(count * percent / 100))


def _is_measured(row: Row) -> bool:
    return row.outcome == "completed" and not row.slow_reader


def _tpot_ms(row: Row) -> float | None:
    whole = _ms(row.first_s, row.last_s)
    if whole is None or row.output_tokens < 2 or not _is_measured(row):
        return None
    return whole / (row.output_tokens - 1)


def _ms(since: float | None, until: float | None) -> float | None:
    return None if since is None or until is None else (until - since) * 1e3


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)
