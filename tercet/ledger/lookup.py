"""Single requests in the ledger, by their ids or by how these begin."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from .cancellations import to_cancellation
from .ledger import Ledger
from .row import Cancellation, Outcome, RefusalKey, Refusals, Row, StageTimes
from .tables import cancellations, refusals, requests

_ROW_FIELDS = tuple(item.name for item in dataclasses.fields(Row) if item.name not in ("stages", "cancellations"))
_STAGE_FIELDS = tuple(item.name for item in dataclasses.fields(StageTimes))
_KEY_FIELDS = tuple(item.name for item in dataclasses.fields(RefusalKey))


def find_rows(ledger: Ledger, prefix: str, tenant: str | None = None, limit: int = 100) -> list[Row]:
    """The requests of that id, or if there are none those whose ids begin so, with their cancellations, the newest
    first, at most `limit`; of one tenant if given. Raises LedgerError."""
    query = sa.select(requests).order_by(requests.c.arrived_at.desc()).limit(limit)
    rows = _of_id_or_prefix(ledger, query, requests, prefix, tenant)
    if not rows:
        return []
    keys = sa.tuple_(cancellations.c.instance, cancellations.c.number)
    of_these = sa.select(cancellations).where(keys.in_([(each.instance, each.number) for each in rows]))
    cancelled: defaultdict[tuple[str, int], list[Cancellation]] = defaultdict(list)
    for each in ledger.read(of_these.order_by(cancellations.c.part)):
        cancelled[each.instance, each.number].append(to_cancellation(each))
    return [_to_row(each, cancelled[each.instance, each.number]) for each in rows]


def find_refusals(ledger: Ledger, prefix: str, tenant: str | None = None, limit: int = 100) -> list[Refusals]:
    """As `find_rows`, refusals by the id of the first of them. Raises LedgerError."""
    query = sa.select(refusals).order_by(refusals.c.second.desc()).limit(limit)
    return [
        Refusals(RefusalKey(**{name: each._mapping[name] for name in _KEY_FIELDS}), each._mapping["count"],
                 each.request_id)
        for each in _of_id_or_prefix(ledger, query, refusals, prefix, tenant)
    ]  # fmt: skip


def _of_id_or_prefix(
    ledger: Ledger, query: sa.Select[Any], table: sa.Table, prefix: str, tenant: str | None
) -> Sequence[sa.Row[Any]]:
    column = table.c.request_id
    if tenant is not None:
        query = query.where(table.c.tenant == tenant)
    # Whole ids an index finds. Whether one begins so it can only help to find: databases differ in how they sort.
    begins = sa.func.substr(column, 1, len(prefix)) == prefix
    return ledger.read(query.where(column == prefix)) or ledger.read(query.where(column >= prefix, begins))


def _to_row(found: sa.Row[Any], cancelled: Sequence[Cancellation]) -> Row:
    values = {name: found._mapping[name] for name in _ROW_FIELDS}
    values["outcome"] = Outcome(values["outcome"])
    stages = StageTimes(**{name: found._mapping[name] for name in _STAGE_FIELDS})
    return Row(**values, stages=stages, cancellations=tuple(cancelled))
