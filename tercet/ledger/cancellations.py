"""The cancels that the ledger has."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from .ledger import Ledger
from .row import GATEWAY_LOST, Cancellation, Cancelled
from .tables import cancellations, gateways, requests

# Origin of what ended with its gateway, which could write nothing of it.
ORIGIN_GATEWAY_LOST = "gateway_lost"


def read_cancellations(
    ledger: Ledger, since: float, until: float, origin: str | None = None, tenant: str | None = None, limit: int = 100
) -> list[Cancelled]:
    """Those from `since` to before `until`, seconds since the epoch, the newest first, at most `limit`; of one origin
    and one tenant if given. Of a gateway that was lost they are as old as when it last lived. Raises LedgerError."""
    at, lost_at = cancellations.c.cancelled_at, gateways.c.seen_at
    told = sa.select(cancellations).where(at >= since, at < until)
    lost = (
        sa.select(requests.c.request_id, requests.c.tenant, requests.c.traffic_class, lost_at)
        .join(gateways, gateways.c.instance == requests.c.instance)
        .where(requests.c.reason == GATEWAY_LOST, lost_at >= since, lost_at < until)
    )
    if tenant is not None:
        told, lost = told.where(cancellations.c.tenant == tenant), lost.where(requests.c.tenant == tenant)
    found: list[Cancelled] = []
    if origin != ORIGIN_GATEWAY_LOST:
        if origin is not None:
            told = told.where(cancellations.c.origin == origin)
        found += [_cancelled(row) for row in ledger.read(told.order_by(at.desc()).limit(limit))]
    if origin in (None, ORIGIN_GATEWAY_LOST):
        found += [
            Cancelled(
                row.request_id, row.tenant, row.traffic_class, Cancellation(None, ORIGIN_GATEWAY_LOST, row.seen_at)
            )
            for row in ledger.read(lost.order_by(lost_at.desc()).limit(limit))
        ]
    found.sort(key=lambda each: each.cancellation.cancelled_at, reverse=True)
    return found[:limit]


def to_cancellation(row: sa.Row[Any]) -> Cancellation:
    """That of a row of the table."""
    fields = {name: row._mapping[name] for name in _FIELDS}
    fields["states"] = tuple(filter(None, fields["states"].split(",")))
    return Cancellation(**fields)


def _cancelled(row: sa.Row[Any]) -> Cancelled:
    return Cancelled(row.request_id, row.tenant, row.traffic_class, to_cancellation(row))


_FIELDS = tuple(Cancellation.__dataclass_fields__)
