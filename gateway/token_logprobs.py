"""Logprobs at one token's place."""

from __future__ import annotations

from dataclasses import dataclass

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of the token itself, and columns of the likeliest tokens with theirs, the likeliest first."""

    logprob: float
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]

    def only(self, num_top: int) -> TokenLogprobs:
        """With no more than so many of the likeliest ones."""
        return TokenLogprobs(self.logprob, self.top_ids[:num_top], self.top_logprobs[:num_top])
