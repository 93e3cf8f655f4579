"""How long a simulated step takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step = base + token * tokens computed + context * tokens that they look back at.

    The base is what a step costs with a single token: weights are read once whatever the batch. `token_s` is compute,
    and matters in prefill; `context_s` is the reading of the KV cache, and matters in decode.
    """

    base_s: float
    token_s: float = 0.0
    context_s: float = 0.0

    def seconds(self, num_tokens: int, context_tokens: int) -> float:
        """Of a step that computes `num_tokens` for sequences with `context_tokens` in their caches."""
        return self.base_s + self.token_s * num_tokens + self.context_s * context_tokens

    def slower(self, factor: float) -> StepCost:
        """The same worker, `factor` times as slow."""
        return StepCost(self.base_s * factor, self.token_s * factor, self.context_s * factor)
