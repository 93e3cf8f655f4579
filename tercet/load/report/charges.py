"""What the requests of a run were charged with, by the ledger of the mesh that served them.

Counts the requests that the run knows by their ids, those of the warm-up left out. What is in no request, such as idle
time, is in no charge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tercet.ledger.ledger import Ledger
from tercet.ledger.row import SLO_MET, Outcome
from tercet.ledger.tables import requests
from tercet.ledger.usage import Usage
from tercet.load.record import Row

# Ids in one query.
_IDS = 500
_HOUR_S = 3_600.0


@dataclass(frozen=True, slots=True)
class Charges:
    """Of a run. `asked`: requests whose ids were looked for, of which `total.requests` were found."""

    asked: int
    total: Usage
    by_class: Mapping[str, Usage]
    by_tenant: Mapping[str, Usage]

    @property
    def hour(self) -> float | None:
        """What an hour of a worker was charged with; None if nothing was."""
        return self.total.cost / self.total.gpu_s * _HOUR_S if self.total.cost and self.total.gpu_s else None


def read_charges(ledger: Ledger, rows: Sequence[Row], hour: float | None) -> Charges:
    """With a price of a worker's hour, by that instead of by the ledger's. Raises LedgerError."""
    ids = sorted({row.request_id for row in rows if row.request_id and not row.warm_up})
    found = [_sums(row, hour) for row in _read(ledger, ids)]
    return Charges(
        len(ids),
        _usage((), [sums for _, _, sums in found]),
        _grouped((traffic_class, sums) for traffic_class, _, sums in found),
        _grouped((tenant, sums) for _, tenant, sums in found),
    )


def _sums(row: sa.Row[Any], hour: float | None) -> tuple[str, str, dict[str, Any]]:
    """Class, tenant, and what a row adds to the sums of Usage. What nobody knows counts as 0."""
    sums = {
        "requests": 1,
        "qualified": int(row.outcome == Outcome.COMPLETED.value and row.slo == SLO_MET),
        "delivered_tokens": row.delivered_tokens or 0,
        "gpu_s": row.gpu_s or 0.0,
        "cost": (row.cost or 0.0) if hour is None else (row.gpu_s or 0.0) / _HOUR_S * hour,
    }
    return row.traffic_class, row.tenant, sums


def _grouped(named: Iterator[tuple[str, dict[str, Any]]]) -> dict[str, Usage]:
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, sums in named:
        groups[name].append(sums)
    return {name: _usage((name,), each) for name, each in sorted(groups.items())}


def _usage(group: tuple[str, ...], each: Sequence[dict[str, Any]]) -> Usage:
    return Usage(group, **{name: sum(sums[name] for sums in each) for name in (each[0] if each else ())})


def _read(ledger: Ledger, ids: Sequence[str]) -> Iterator[sa.Row[Any]]:
    columns = requests.c
    wanted = sa.select(
        columns.tenant, columns.traffic_class, columns.outcome, columns.slo, columns.delivered_tokens, columns.gpu_s,
        columns.cost,
    )  # fmt: skip
    for start in range(0, len(ids), _IDS):
        yield from ledger.read(wanted.where(columns.request_id.in_(ids[start : start + _IDS])))
