"""One sequence on a worker: its tokens, how far its KV cache reaches, and when it ends."""

from __future__ import annotations

import dataclasses

from . import _core
from .messages import EndReason, Fork, NewSequence
from .sequence_group import SequenceGroup


class Sequence:
    """A sequence between NewSequence and its end. Its KV cache holds the first `num_computed` of `token_ids`.

    A leader has `forks` until its prefill is complete and they begin. While a sequence is swapped out its table is
    empty, and blocks of host memory hold what its KV cache held.
    """

    __slots__ = (
        "forks", "group", "host_blocks", "in_decode_set", "num_cached", "num_computed", "spec", "table", "token_ids",
    )  # fmt: skip

    def __init__(self, spec: NewSequence, table: _core.BlockTable, group: SequenceGroup) -> None:
        self.spec = spec
        self.table = table
        self.group = group
        group.join(spec.sequence_id, table)
        self.token_ids = list(spec.token_ids)
        self.num_computed = 0
        self.num_cached = 0
        self.in_decode_set = False
        self.forks: tuple[Fork, ...] = spec.forks
        self.host_blocks: list[int] = []

    @property
    def num_missing(self) -> int:
        """Known tokens that are not in the KV cache."""
        return len(self.token_ids) - self.num_computed

    @property
    def prefill_complete(self) -> bool:
        """Whether the tokens it came with have all been computed."""
        return self.num_computed >= len(self.spec.token_ids)

    @property
    def decodes(self) -> bool:
        """Whether it takes part in every step."""
        return self.in_decode_set and self.prefill_complete

    def fork(self, fork: Fork) -> Sequence:
        """One that goes on from here with its own seed, and shares all blocks until it writes."""
        sampling = dataclasses.replace(self.spec.sampling, seed=fork.seed)
        spec = dataclasses.replace(self.spec, sequence_id=fork.sequence_id, sampling=sampling, forks=())
        child = Sequence(spec, self.table.fork(), self.group)
        child.num_computed, child.num_cached = self.num_computed, self.num_cached
        child.in_decode_set = self.in_decode_set
        return child

    def leave(self) -> tuple[int, int]:
        """Gives its blocks back for good: how many it had that no sibling has, and how many had no other user."""
        return self.group.leave(self.spec.sequence_id)

    def find_prefix(self) -> None:
        """Takes what the prefix cache has, but for the last token: that one must be computed to get logits."""
        self.num_cached = self.table.match_prefix(self.token_ids[:-1])
        self.num_computed = self.num_cached

    def advance(self, count: int) -> None:
        """`count` more tokens are in the KV cache; publishes the blocks that became full."""
        self.table.commit(self.token_ids[self.num_computed : self.num_computed + count])
        self.num_computed += count

    def append(self, token_id: int) -> EndReason | None:
        """Takes the next token; says why the sequence ends with it, if it does. Stop beats length."""
        self.token_ids.append(token_id)
        if token_id in self.spec.stop_token_ids:
            return EndReason.STOP
        if len(self.token_ids) >= self.spec.max_length:
            return EndReason.LENGTH
        return None
