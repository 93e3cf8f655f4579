"""What bounds a plan besides credits: what the operator asks for, what a worker can do in one step, and how many
prefill tokens that leaves beside decodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from .step_time import CAUTIOUS_TOKENS

# Prefill tokens beside decodes that no forecast takes away: every prefill advances.
LEAST_PREFILL_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """What the worker can do in one step."""

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int

    @property
    def max_running(self) -> int:
        """Most sequences on the worker: each may need a token in one and the same step."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator asks for.

    `num_steps` 0: plans are as long as is good; `max_prefill_tokens` 0: in a step with decodes, as many as keep it
    within `max_mixed_step_s` seconds.
    """

    num_steps: int
    max_prefill_tokens: int
    max_mixed_step_s: float = 0.05


def paced(pending: float) -> float:
    """Of so many prefill tokens those in a step that somebody may have to wait for to whom something is owed."""
    return max(LEAST_PREFILL_TOKENS, pending / 2)


def prefill_cap(policy: Policy, mixed_tokens: int | None) -> int:
    """Most prefill tokens in a step with decodes; `mixed_tokens` as in the planner's Forecast."""
    if policy.max_prefill_tokens:
        return policy.max_prefill_tokens
    if mixed_tokens is None:
        return CAUTIOUS_TOKENS
    return max(LEAST_PREFILL_TOKENS, mixed_tokens)
