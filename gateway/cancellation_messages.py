"""Cancels of the books as the public contract has them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from tercet.ledger.row import Cancellation, Row
from tercet.v1 import operations_pb2 as pb

# In an answer, unless it is said how many.
DEFAULT_CANCELLATIONS = 100


def to_cancellations(
    cancelled: Iterable[tuple[Row, Cancellation]], asked: pb.ListCancellationsRequest
) -> pb.ListCancellationsResponse:
    """Those that are asked for, in the same order."""
    found = (
        (row, each) for row, each in cancelled if asked.origin in ("", each.origin) and asked.tenant in ("", row.tenant)
    )
    most = asked.max_cancellations or DEFAULT_CANCELLATIONS
    return pb.ListCancellationsResponse(cancellations=[_cancellation(*each) for each in islice(found, most)])


def _cancellation(row: Row, each: Cancellation) -> pb.Cancellation:
    return pb.Cancellation(
        request_id=row.request_id,
        tenant=row.tenant,
        traffic_class=row.traffic_class,
        origin=each.origin,
        output_index=each.output_index,
        cancelled_at=each.cancelled_at,
        states=each.states,
        release_seconds=each.release_s,
        freed_seconds=each.freed_s,
        done_seconds=each.done_s,
        blocks_freed=each.blocks_freed,
        wasted_tokens=each.wasted_tokens,
        wasted_gpu_seconds=each.wasted_gpu_s,
    )
