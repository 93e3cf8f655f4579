"""What the requests of a run were charged with, by the ledger of the mesh that served them.

Counts the requests that the run knows by their ids, those of the warm-up left out. What is in no request, such as idle
time, is in no charge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from tercet.ledger.ledger import Ledger
from tercet.ledger.row import SLO_MET, Outcome
from tercet.ledger.tables import requests
from tercet.load.record import Row

# Ids in one query.
_IDS = 500
_HOUR_S = 3_600.0


@dataclass(slots=True)
class Charge:
    """Sums over requests. What nobody knows counts as 0."""

    requests: int = 0
    qualified: int = 0
    delivered_tokens: int = 0
    wasted_tokens: int = 0
    gpu_s: float = 0.0
    cost: float = 0.0

    @property
    def per_qualified(self) -> float | None:
        """Cost per qualified request, all others included; None if there was none."""
        return self.cost / self.qualified if self.qualified else None

    @property
    def per_1000_tokens(self) -> float | None:
        """Likewise, of output tokens that clients got."""
        return 1_000 * self.cost / self.delivered_tokens if self.delivered_tokens else None


@dataclass(frozen=True, slots=True)
class Charges:
    """Of a run. `asked`: requests whose ids were looked for, of which `total.requests` were found."""

    asked: int
    total: Charge = field(default_factory=Charge)
    by_class: dict[str, Charge] = field(default_factory=dict)
    by_tenant: dict[str, Charge] = field(default_factory=dict)


def read_charges(ledger: Ledger, rows: Sequence[Row], gpu_hour: float | None) -> Charges:
    """With a price of a GPU's hour, by that instead of by the ledger's. Raises LedgerError."""
    ids = sorted({row.request_id for row in rows if row.request_id and not row.warm_up})
    found = Charges(len(ids))
    for row in _read(ledger, ids):
        cost = (row.cost or 0.0) if gpu_hour is None else (row.gpu_s or 0.0) / _HOUR_S * gpu_hour
        qualified = row.outcome == Outcome.COMPLETED.value and row.slo == SLO_MET
        for charge in (
            found.total,
            found.by_class.setdefault(row.traffic_class, Charge()),
            found.by_tenant.setdefault(row.tenant, Charge()),
        ):
            charge.requests += 1
            charge.qualified += qualified
            charge.delivered_tokens += row.delivered_tokens or 0
            charge.wasted_tokens += row.wasted_tokens or 0
            charge.gpu_s += row.gpu_s or 0.0
            charge.cost += cost
    return found


def _read(ledger: Ledger, ids: Sequence[str]) -> Iterator[sa.Row[Any]]:
    columns = requests.c
    wanted = sa.select(
        columns.tenant, columns.traffic_class, columns.outcome, columns.slo, columns.delivered_tokens,
        columns.wasted_tokens, columns.gpu_s, columns.cost,
    )  # fmt: skip
    for some in _chunks(ids):
        yield from ledger.read(wanted.where(columns.request_id.in_(some)))


def _chunks(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[start : start + _IDS] for start in range(0, len(ids), _IDS))
