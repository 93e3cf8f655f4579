"""The answer to a study as plain data: rounded numbers, milliseconds, nothing that depends on the wall clock."""

from __future__ import annotations

from typing import Any

from .capacity import Result
from .flow_tally import FlowTally
from .spread import Spread


def answer(result: Result) -> dict[str, Any]:
    """All that was counted."""
    tally = result.tally
    prompt_tokens = result.prompt_tokens_cached + result.prompt_tokens_computed
    seconds = result.seconds
    return {
        "seconds": rounded(seconds),
        "requests": {
            "completed": tally.completed,
            "cancelled": tally.cancelled,
            "failed": dict(sorted(tally.failed.items())),
            "refused": dict(sorted(tally.refused.items())),
        },
        "problems": dict(sorted(tally.problems.items())),
        "requests_per_second": rounded(tally.completed / seconds) if seconds else 0.0,
        "tokens": tally.tokens,
        "tokens_per_second": rounded(tally.tokens / seconds) if seconds else 0.0,
        "ttft_ms": _milliseconds(tally.first_token),
        "gap_ms": _milliseconds(tally.gap),
        "queue_ms": _milliseconds(tally.queue),
        "total_ms": _milliseconds(tally.total),
        "flows": {name: _flow(flow, result.arriving_seconds) for name, flow in tally.flows.items()},
        "worker_busy_ratio": rounded(result.busy),
        "kv_used_ratio": {"mean": rounded(result.blocks_used), "max": rounded(result.blocks_used_most)},
        "prefix_hit_ratio": rounded(result.prompt_tokens_cached / prompt_tokens) if prompt_tokens else 0.0,
        "preemptions": tally.preemptions,
        "swaps": tally.swaps,
        "plans": tally.plans,
        "plan_steps_mean": rounded(tally.plan_steps / tally.plans) if tally.plans else 0.0,
        "revocations": tally.revocations,
        "steps": tally.steps,
    }


def _flow(flow: FlowTally, arriving_seconds: float) -> dict[str, Any]:
    return {
        "traffic_class": flow.traffic_class.name,
        "offered": flow.offered,
        "accepted": flow.accepted,
        "completed": flow.completed,
        "cancelled": flow.cancelled,
        "failed": dict(sorted(flow.failed.items())),
        "refused": dict(sorted(flow.refused.items())),
        "refused_with_retry": flow.retries,
        "qualified": flow.qualified + flow.qualified_late,
        # Under load: what is done after the last arrival is not counted.
        "qualified_per_second": rounded(flow.qualified / arriving_seconds) if arriving_seconds else 0.0,
        "ttft_ms": _milliseconds(flow.first_token),
    }


def _milliseconds(spread: Spread) -> dict[str, float]:
    numbers = {"mean": spread.mean, **{f"p{percent}": spread.percentile(percent) for percent in (50, 95, 99)}}
    return {name: rounded(number * 1e3) for name, number in {**numbers, "max": spread.largest}.items()}


def rounded(number: float) -> float:
    """As in reports."""
    return round(number, 4)
