"""The answer to a study as plain data: rounded numbers, milliseconds, nothing that depends on the wall clock."""

from __future__ import annotations

from typing import Any

from .capacity import Result


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
        "ttft_ms": tally.first_token.report(1e3),
        "gap_ms": tally.gap.report(1e3),
        "queue_ms": tally.queue.report(1e3),
        "total_ms": tally.total.report(1e3),
        "flows": {name: flow.report(result.loaded_seconds) for name, flow in tally.flows.items()},
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


def rounded(number: float) -> float:
    """As in reports."""
    return round(number, 4)
