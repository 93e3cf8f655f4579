"""What the rows of some time add up to, by tenant, class, model, day or outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import sqlalchemy as sa

from .ledger import Ledger
from .row import SLO_MET, Outcome
from .tables import refusals, requests

_HOUR_S = 3_600.0

# What can be told apart, by the column that has it.
GROUPS: Mapping[str, str] = {
    "tenant": "tenant",
    "class": "traffic_class",
    "model": "model",
    "day": "day",
    "outcome": "outcome",
}


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums over the requests that arrived in some time, and are alike in `group`. What nobody knows counts as 0."""

    # The values of what was told apart, in that order.
    group: tuple[str, ...]
    # All of them, and by outcome; `open` have not ended.
    requests: int = 0
    open: int = 0
    completed: int = 0
    refused: int = 0
    cancelled: int = 0
    expired: int = 0
    failed: int = 0
    lost: int = 0
    # Completed with all that their class promises.
    qualified: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    delivered_tokens: int = 0
    wasted_tokens: int = 0
    gpu_s: float = 0.0
    # Of gpu_s, on workers without a GPU.
    cpu_s: float = 0.0
    cost: float = 0.0

    @property
    def cost_per_1000(self) -> float | None:
        """What a thousand tokens cost that were delivered, all others included; None if there were none."""
        return 1000 * self.cost / self.delivered_tokens if self.delivered_tokens else None

    @property
    def cost_per_qualified(self) -> float | None:
        """What a request costs that was served as promised, all others included; None if there was none."""
        return self.cost / self.qualified if self.qualified else None


SUMS = tuple(item.name for item in fields(Usage) if item.name != "group")
_COLUMN_SUMS = SUMS[SUMS.index("prompt_tokens") :]
_FRACTIONS = ("gpu_s", "cpu_s", "cost")

# What follows from the sums.
RATIOS = ("cost_per_1000", "cost_per_qualified")


@dataclass(frozen=True, slots=True)
class Capacity:
    """What so many workers were there for, and what was made of it. Durations in hours of a worker."""

    hours: float
    used_hours: float
    # At what an hour of those that were used has cost; None: nothing was used.
    idle_cost: float | None
    cost_per_qualified: float | None

    @property
    def share(self) -> float:
        """Of the time the part that steps took."""
        return self.used_hours / self.hours if self.hours else 0.0


def capacity(rows: Sequence[Usage], workers: float, seconds: float) -> Capacity:
    """Of `workers` that were there for so long, by the sums of all that they did then."""
    hours, used_hours = workers * seconds / _HOUR_S, sum(row.gpu_s for row in rows) / _HOUR_S
    cost, qualified = sum(row.cost for row in rows), sum(row.qualified for row in rows)
    if not used_hours:
        return Capacity(hours, 0.0, None, None)
    idle_cost = max(0.0, hours - used_hours) * cost / used_hours
    return Capacity(hours, used_hours, idle_cost, (cost + idle_cost) / qualified if qualified else None)


def usage(ledger: Ledger, since: float, until: float, by: Sequence[str] = ()) -> list[Usage]:
    """Of requests that arrived from `since` to before `until`, seconds since the epoch. `by` are keys of GROUPS; the
    result is sorted by them. One row, of zeros if there was nothing, if nothing is told apart. Raises LedgerError."""
    columns = [GROUPS[name] for name in by]
    sums: dict[tuple[str, ...], dict[str, Any]] = {}
    if not by:
        sums[()] = {}
    for row in ledger.read(_requests_query(columns, since, until)):
        found = sums.setdefault(tuple(row[: len(by)]), {})
        for name, value in zip(SUMS, row[len(by) :], strict=True):
            # Sums of nothing are NULL, and those of PostgreSQL decimals.
            found[name] = float(value or 0) if name in _FRACTIONS else int(value or 0)
    for row in ledger.read(_refusals_query(columns, since, until)):
        found = sums.setdefault(tuple(row[: len(by)]), {})
        for name in ("requests", Outcome.REFUSED.value):
            found[name] = found.get(name, 0) + int(row[-1])
    return [Usage(group, **values) for group, values in sorted(sums.items())]


def _requests_query(columns: Sequence[str], since: float, until: float) -> sa.Select[Any]:
    outcome = requests.c.outcome
    groups = [requests.c[name] for name in columns]
    counts = [_count_of(outcome == each.value) for each in _OUTCOMES]
    qualified = _count_of(sa.and_(outcome == Outcome.COMPLETED.value, requests.c.slo == SLO_MET))
    totals = [sa.func.sum(requests.c[name]) for name in _COLUMN_SUMS]
    arrived = requests.c.arrived_at
    query = sa.select(*groups, sa.func.count(), *counts, qualified, *totals)
    return query.where(arrived >= since, arrived < until).group_by(*groups)


def _refusals_query(columns: Sequence[str], since: float, until: float) -> sa.Select[Any]:
    refused: sa.ColumnElement[str] = sa.literal_column(f"'{Outcome.REFUSED.value}'")
    groups = [refused if name == "outcome" else refusals.c[name] for name in columns]
    second = refusals.c.second
    query = sa.select(*groups, sa.func.sum(refusals.c["count"]))
    # A constant is nothing to group by.
    by = [refusals.c[name] for name in columns if name != "outcome"]
    query = query.where(second >= since, second < until)
    return query.group_by(*by) if by else query.having(sa.func.count() > 0)


# In the order of the fields of Usage.
_OUTCOMES = tuple(Outcome(name) for name in SUMS if name in {each.value for each in Outcome})


def _count_of(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0))
