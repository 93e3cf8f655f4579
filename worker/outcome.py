"""What a step did to its sequences."""

from __future__ import annotations

from dataclasses import dataclass, field

from .messages import Ended, PrefillProgress, PromptLogprobs, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Outcome:
    """Tokens by sequence, progress of prefills, who ended, and logprobs of those that want some; `chunk_sizes` has the
    tokens that it computed of each prefill, `step_us` is in microseconds where the device told it."""

    sequence_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prefills: list[PrefillProgress] = field(default_factory=list)
    chunk_sizes: list[int] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    step_us: int | None = None
    logprobs: list[tuple[int, TokenLogprobs]] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
