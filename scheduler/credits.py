"""The credits of one worker: blocks its pool has reported, minus what the plans in flight may still take.

The worker's pool is the authority; this keeps no copy of it. Knows counts, never which blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .events import BlockCounts


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` tokens."""
    return -(-num_tokens // block_size)


class CreditLedger:
    """Per sequence on the worker: blocks *reserved* (what it may grow to) and *held* (what the reports imply it has).

    A block found in the prefix cache moves from cached to held like a fresh one, or is shared and costs nothing, so
    reserved - held bounds from above what a sequence can still take out of free + cached. Held is derived from reports
    that came before or with the counts, so it never runs ahead of them. Hence `available` can be spent without the
    worker ever running out inside a plan.
    """

    num_blocks: int
    block_size: int
    counts: BlockCounts
    _reserved: dict[int, int]
    _held: dict[int, int]
    _outstanding: int

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.counts = BlockCounts(free=num_blocks, cached=0, used=0)
        self._reserved = {}
        self._held = {}
        self._outstanding = 0

    def __len__(self) -> int:
        return len(self._reserved)

    def __contains__(self, sequence_id: int) -> bool:
        return sequence_id in self._reserved

    @property
    def available(self) -> int:
        """Blocks nobody has a claim on. May be negative between plans if a worker takes blocks before it needs them."""
        return self.counts.free + self.counts.cached - self._outstanding

    def reserved(self, sequence_id: int) -> int:
        """Blocks the sequence may grow to."""
        return self._reserved[sequence_id]

    def held(self, sequence_id: int) -> int:
        """Blocks the sequence has, as far as reported."""
        return self._held[sequence_id]

    def reserved_together(self, sequence_ids: Iterable[int]) -> int:
        """`reserved` of these, summed up."""
        return sum(map(self._reserved.__getitem__, sequence_ids))

    @property
    def held_blocks(self) -> Mapping[int, int]:
        """`held` of every sequence, for loops over many."""
        return self._held

    def report(self, counts: BlockCounts) -> None:
        """Takes the worker's word for its pool."""
        self.counts = counts

    def reserve(self, sequence_id: int, num_tokens: int) -> None:
        """Sets what the sequence may grow to, in tokens; opens its account. Never below what it holds."""
        held = self._held.setdefault(sequence_id, 0)
        blocks = max(blocks_for(num_tokens, self.block_size), held)
        self._outstanding += blocks - self._reserved.get(sequence_id, 0)
        self._reserved[sequence_id] = blocks

    def reserve_each(self, sequence_ids: Iterable[int], num_tokens: Iterable[int]) -> None:
        """`reserve` for many at once: every plan does that for all that run."""
        held_by_id, reserved_by_id, size = self._held, self._reserved, self.block_size
        outstanding = self._outstanding
        for sequence_id, tokens in zip(sequence_ids, num_tokens, strict=True):
            blocks = -(-tokens // size)
            before = reserved_by_id.get(sequence_id)
            if blocks == before:
                # From plan to plan nearly all stay as they are.
                continue
            if before is None:
                held_by_id[sequence_id] = before = 0
            elif blocks < (held := held_by_id[sequence_id]):
                blocks = held
            outstanding += blocks - before
            reserved_by_id[sequence_id] = blocks
        self._outstanding = outstanding

    def open_fork(self, sequence_id: int, num_shared_tokens: int) -> None:
        """Opens the account of a sequence that will be forked where `num_shared_tokens` tokens of another end.

        It holds the full blocks of those: it will never take them from the pool. The partial block is shared until
        somebody writes, so it is not held, and whoever writes first takes a copy. Of n that share it at most n - 1
        take one, for the last finds itself alone: that is one for each fork and none for its leader, who holds the
        block. A fork's copy stays owed until its own first write is reported; then its `hold` settles it, whether it
        was the fork that took the copy or its leader. So reserved - held still bounds, summed over those that share
        it, what they can take.
        """
        self._held[sequence_id] = self._reserved[sequence_id] = num_shared_tokens // self.block_size

    def reopen(self, sequence_id: int, num_blocks: int) -> None:
        """Opens the account of a sequence that has kept so many blocks since its last one was closed."""
        self._held[sequence_id] = self._reserved[sequence_id] = num_blocks

    def hold(self, sequence_id: int, num_tokens: int) -> None:
        """Notes tokens that the worker has confirmed in its KV cache."""
        held = self._held[sequence_id]
        if num_tokens <= held * self.block_size:
            return
        blocks = blocks_for(num_tokens, self.block_size)
        self._held[sequence_id] = blocks
        self._outstanding -= blocks - held
        if blocks > self._reserved[sequence_id]:
            self._outstanding += blocks - self._reserved[sequence_id]
            self._reserved[sequence_id] = blocks

    def forget(self, sequence_id: int) -> None:
        """Closes an account: the worker has said that the blocks are free, or that they are kept and nothing more is
        taken."""
        self._outstanding -= self._reserved.pop(sequence_id) - self._held.pop(sequence_id)

    def check(self) -> list[str]:
        """What does not balance; empty when all does."""
        problems = []
        counts = self.counts
        if counts.free + counts.cached + counts.used != self.num_blocks:
            problems.append(f"{counts} does not add up to {self.num_blocks} blocks")
        outstanding = sum(self._reserved[key] - self._held[key] for key in self._reserved)
        if outstanding != self._outstanding:
            problems.append(f"outstanding is {self._outstanding}, accounts say {outstanding}")
        if self._reserved.keys() != self._held.keys():
            problems.append("a sequence has half an account")
        problems += [
            f"sequence {key} holds {self._held[key]} of {reserved} reserved blocks"
            for key, reserved in self._reserved.items()
            if self._held.get(key, 0) > reserved
        ]
        return problems
