"""The line that a log has of each request that has ended: what the ledger has of it, and no text."""

from __future__ import annotations

from typing import Any

from tercet.ledger.row import Row


def end_line(row: Row, *, key_id: str, client_gone: bool, trace_id: str | None) -> dict[str, Any]:
    """Its fields. `trace_id` only where there is one."""
    line = {
        "request_id": row.request_id,
        "tenant": row.tenant,
        "key": key_id,
        "traffic_class": row.traffic_class,
        "model": row.model,
        "outcome": row.outcome.value,
        "reason": row.reason,
        "client_gone": client_gone,
        "outputs": row.outputs,
        "prompt_tokens": row.prompt_tokens,
        "cached_tokens": row.cached_tokens,
        "completion_tokens": row.generated_tokens,
        "wasted_tokens": row.wasted_tokens,
        "queue_ms": _ms(row.queue_s),
        "ttft_ms": _ms(row.ttft_s),
        "tpot_ms": _ms(row.tpot_s),
        "largest_gap_ms": _ms(row.largest_gap_s),
        "total_ms": _ms(row.total_s),
        "gpu_ms": _ms(row.gpu_s),
        "slo": row.slo,
    }
    return line if trace_id is None else {**line, "trace_id": trace_id}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)
