"""The memory of a simulated worker: which blocks its sequences have, on the device and in host memory.

Knows no plans and no steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..events import WorkerInfo
from .pool import SimulatedPool, block_name
from .sequence import SimulatedSequence, SwappedSequence


class SimulatedMemory:
    """A pool, and host memory for `info.num_swap_blocks` blocks. `verify`: blocks have contents.

    Methods that take blocks raise OutOfBlocksError.
    """

    def __init__(self, info: WorkerInfo, *, caching: bool, verify: bool) -> None:
        self.pool = SimulatedPool(info.num_blocks, info.block_size, caching=caching, contents=verify)
        self.swapped: dict[int, SwappedSequence] = {}
        # Tokens of prompts that the prefix cache had.
        self.tokens_cached = 0
        self._num_swap_blocks = info.num_swap_blocks
        self._moved = 0

    @property
    def swap_blocks_used(self) -> int:
        """Blocks in host memory."""
        return sum(swapped.num_blocks for swapped in self.swapped.values())

    def take_moved(self) -> int:
        """Blocks that went to or came from host memory since the last call."""
        moved, self._moved = self._moved, 0
        return moved

    def match(self, sequence: SimulatedSequence) -> None:
        """Gives a new sequence what the prefix cache has of it, but for one token: that one is computed."""
        sequence.matched = True
        size = self.pool.block_size
        for start in range(0, (len(sequence.tokens) - 1) // size * size, size):
            name = block_name(sequence.chain, sequence.tokens[start : start + size])
            block = self.pool.block_of.get(name)
            if block is None:
                break
            self.pool.share(block)
            sequence.blocks.append(block)
            sequence.chain = name
            sequence.computed += size
        sequence.cached = sequence.computed
        self.tokens_cached += sequence.cached

    def grow(self, sequence: SimulatedSequence, num_tokens: int) -> None:
        """Takes blocks until `num_tokens` have a place, or all that the sequence may ever have."""
        while len(sequence.blocks) * self.pool.block_size < min(num_tokens, sequence.new.max_length):
            sequence.blocks.append(self.pool.take())

    def own_last_block(self, sequence: SimulatedSequence) -> None:
        """Copies a partial block before the first write into it if others still use it: the last one keeps it."""
        sequence.forked = False
        index, filled = divmod(sequence.computed, self.pool.block_size)
        if filled and self.pool.references[sequence.blocks[index]] > 1:
            sequence.blocks[index] = self.pool.copy(sequence.blocks[index])

    def write(self, sequence: SimulatedSequence, count: int) -> None:
        """Computes `count` more tokens. Full blocks can be found from now on."""
        size = self.pool.block_size
        start, end = sequence.computed, sequence.computed + count
        if self.pool.contents:
            for position in range(start, end):
                block = sequence.blocks[position // size]
                assert self.pool.references[block] == 1, "writes into a shared block"
                assert len(self.pool.content[block]) == position % size, "writes into the wrong slot"
                self.pool.content[block].append(sequence.tokens[position])
        sequence.computed = end
        for index in range(start // size, end // size):
            self._publish(sequence, index)

    def write_one(self, sequences: Iterable[SimulatedSequence]) -> None:
        """`write` of one token for each, which is most of what a worker does."""
        size, contents = self.pool.block_size, self.pool.contents
        for sequence in sequences:
            if contents:
                self.write(sequence, 1)
                continue
            sequence.computed += 1
            if not sequence.computed % size:
                self._publish(sequence, sequence.computed // size - 1)

    def read_back(self, sequence: SimulatedSequence) -> list[int]:
        """The tokens of a sequence as its blocks have them."""
        read = [token for block in sequence.blocks for token in self.pool.content[block]]
        assert read == sequence.tokens, "the cache holds something else"
        return read

    def fork(self, leader: SimulatedSequence, sequence_id: int, seed: int) -> SimulatedSequence:
        """A sequence that shares the blocks of another one, copy on write."""
        blocks = leader.blocks[: -(-leader.computed // self.pool.block_size)]
        for block in blocks:
            self.pool.share(block)
        leader.forked = True
        sampling = replace(leader.new.sampling, seed=seed)
        return SimulatedSequence(
            replace(leader.new, sequence_id=sequence_id, sampling=sampling, forks=()),
            list(leader.tokens),
            blocks=blocks,
            computed=leader.computed,
            matched=True,
            forked=True,
            chain=leader.chain,
        )

    def swap_out(self, sequence: SimulatedSequence) -> bool:
        """Copies the blocks to host memory, if there is room. They stay the sequence's until `drop`."""
        if self.swap_blocks_used + len(sequence.blocks) > self._num_swap_blocks:
            return False
        contents = [tuple(self.pool.content[block]) for block in sequence.blocks] if self.pool.contents else []
        self.swapped[sequence.new.sequence_id] = SwappedSequence(sequence, len(sequence.blocks), tuple(contents))
        self._moved += len(sequence.blocks)
        return True

    def swap_in(self, sequence_id: int) -> SimulatedSequence:
        """Brings a sequence back, into blocks of its own."""
        swapped = self.swapped.pop(sequence_id)
        sequence = swapped.sequence
        sequence.blocks = [self.pool.take() for _ in range(swapped.num_blocks)]
        sequence.forked = False
        for block, content in zip(sequence.blocks, swapped.contents, strict=False):
            self.pool.content[block] = list(content)
        self._moved += swapped.num_blocks
        return sequence

    def trim(self, sequence: SimulatedSequence) -> None:
        """Gives back blocks that hold nothing yet."""
        while len(sequence.blocks) > -(-sequence.computed // self.pool.block_size):
            self.pool.drop(sequence.blocks.pop())

    def drop(self, sequence: SimulatedSequence) -> int:
        """Gives the blocks of a sequence back; returns how many became free."""
        # Leaves first, so that the root of a prefix is evicted last.
        return sum(self.pool.drop(block) for block in reversed(sequence.blocks))

    def _publish(self, sequence: SimulatedSequence, index: int) -> None:
        """Block `index` of a sequence is full."""
        if self.pool.caching:
            size = self.pool.block_size
            sequence.chain = block_name(sequence.chain, sequence.tokens[index * size : (index + 1) * size])
            self.pool.publish(sequence.blocks[index], sequence.chain)
