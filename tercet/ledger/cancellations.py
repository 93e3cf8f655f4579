"""The cancels that the ledger has, and how long they took by origin."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from .ledger import Ledger
from .row import GATEWAY_LOST, Cancellation
from .tables import cancellations, gateways, requests

# Origin of what ended with its gateway, which could write nothing of it.
ORIGIN_GATEWAY_LOST = "gateway_lost"


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A cancel, and whose request it was of."""

    request_id: str
    tenant: str
    traffic_class: str
    cancellation: Cancellation


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
            Cancelled(request_id, whose, traffic_class, Cancellation(None, ORIGIN_GATEWAY_LOST, seen_at))
            for request_id, whose, traffic_class, seen_at in ledger.read(lost.order_by(lost_at.desc()).limit(limit))
        ]
    found.sort(key=lambda each: each.cancellation.cancelled_at, reverse=True)
    return found[:limit]


@dataclass(frozen=True, slots=True)
class Spread:
    """Durations of the cancels of one origin, in seconds, None if none is known: until the blocks were free, on the
    scheduler's clock, and until the gateway knew, on its own."""

    origin: str
    count: int
    freed_p50_s: float | None
    freed_p99_s: float | None
    freed_max_s: float | None
    done_p50_s: float | None
    done_p99_s: float | None
    done_max_s: float | None


def summary(cancelled: Iterable[Cancelled]) -> list[Spread]:
    """By origin, in their order."""
    by_origin: defaultdict[str, list[Cancellation]] = defaultdict(list)
    for each in cancelled:
        by_origin[each.cancellation.origin].append(each.cancellation)
    return [
        Spread(
            origin,
            len(found),
            *_quantiles([each.freed_s for each in found if each.freed_s is not None]),
            *_quantiles([each.done_s for each in found if each.done_s is not None]),
        )
        for origin, found in sorted(by_origin.items())
    ]


def _quantiles(seconds: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Half of them, 99 of a hundred, and all are at most this long."""
    if not seconds:
        return None, None, None
    ordered = sorted(seconds)
    half, most = (ordered[math.ceil(part * len(ordered)) - 1] for part in (0.5, 0.99))
    return half, most, ordered[-1]


def _cancelled(row: sa.Row[tuple[object, ...]]) -> Cancelled:
    fields = {name: row._mapping[name] for name in _FIELDS}
    fields["states"] = tuple(filter(None, fields["states"].split(",")))
    return Cancelled(row.request_id, row.tenant, row.traffic_class, Cancellation(**fields))


_FIELDS = tuple(Cancellation.__dataclass_fields__)
