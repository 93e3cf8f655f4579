"""A request that asks to be let in, as a forecast sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from .credits import blocks_for


@dataclass(frozen=True, slots=True)
class Newcomer:
    """`computed`: for each worker (by link) that may run it, the tokens of its prompt that the worker's prefix cache
    does not have."""

    prompt_tokens: int
    members: int
    rank: int
    claim: tuple[float, int]
    computed: Mapping[int, int]
    # Seconds until its promise is at stake, so that those of higher ranks make room for it; infinite: never.
    due_s: float = inf

    def blocks(self, block_size: int) -> int:
        """With which it can start: forks share the full blocks of the prompt."""
        return blocks_for(self.prompt_tokens + 1, block_size) + self.members - 1
