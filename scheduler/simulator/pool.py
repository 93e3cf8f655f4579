"""The block pool of a simulated worker: reference counts, a prefix cache with LRU eviction, host memory.

With `contents` it keeps what every block holds, so that a wrong block shows; without, it only counts.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2s

from ..events import BlockCounts


class OutOfBlocksError(Exception):
    """The scheduler promised blocks that are not there."""


def salt_name(salt: bytes) -> bytes:
    """Where the chain of a salt starts."""
    return blake2s(salt, digest_size=16, person=b"tercet-s").digest()


def block_name(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The name of a full block behind the one named `parent`, as workers name it."""
    words = struct.pack(f"<{len(token_ids)}I", *token_ids)
    return blake2s(parent + words, digest_size=16, person=b"tercet-b").digest()


def key_of(name: bytes) -> int:
    """The short form of a name, for cache events."""
    return int.from_bytes(name[:8], "little")


class SimulatedPool:
    """Blocks are numbers. `content[b]` is what block b holds, if contents are kept."""

    def __init__(self, num_blocks: int, block_size: int, *, caching: bool = True, contents: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.caching = caching
        self.contents = contents
        self.free = list(range(num_blocks))
        self.content: list[list[int]] = [[] for _ in range(num_blocks)] if contents else []
        self.references = [0] * num_blocks
        self.name_of: dict[int, bytes] = {}
        self.block_of: dict[bytes, int] = {}
        # Published blocks that nobody uses, the next to be evicted first.
        self.cached: OrderedDict[int, None] = OrderedDict()
        # Whether each key that changed since the last `take_changes` can be found now.
        self._changes: dict[int, bool] = {}

    @property
    def counts(self) -> BlockCounts:
        free, cached = len(self.free), len(self.cached)
        return BlockCounts(free, cached, self.num_blocks - free - cached)

    def take(self) -> int:
        """A block for one user, from the cache's oldest if none is free. Raises OutOfBlocksError."""
        if self.free:
            block = self.free.pop()
        elif self.cached:
            block, _ = self.cached.popitem(last=False)
            name = self.name_of.pop(block)
            del self.block_of[name]
            self._changes[key_of(name)] = False
        else:
            raise OutOfBlocksError
        if self.contents:
            self.content[block] = []
        self.references[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more user of a block."""
        self.cached.pop(block, None)
        self.references[block] += 1

    def copy(self, block: int) -> int:
        """A block of one's own with the same content, for one that others use too. Raises OutOfBlocksError."""
        own = self.take()
        if self.contents:
            self.content[own] = list(self.content[block])
        self.drop(block)
        return own

    def publish(self, block: int, name: bytes) -> None:
        """Lets a full block be found by its name, unless another has it already."""
        if self.caching and name not in self.block_of:
            self.block_of[name] = block
            self.name_of[block] = name
            self._changes[key_of(name)] = True

    def drop(self, block: int) -> bool:
        """One user less. Returns whether it was the last."""
        self.references[block] -= 1
        if self.references[block]:
            return False
        if block in self.name_of:
            self.cached[block] = None
        else:
            self.free.append(block)
        return True

    def take_changes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Keys (removed, stored) since the last call. One that came and went is among the removed."""
        changes, self._changes = self._changes, {}
        removed = tuple(key for key, found in changes.items() if not found)
        return removed, tuple(key for key, found in changes.items() if found)

    @property
    def keys(self) -> set[int]:
        """Keys of all blocks that can be found."""
        return {key_of(name) for name in self.block_of}

    def check(self) -> list[str]:
        """What does not add up; empty when all does."""
        problems = []
        free, cached = set(self.free), set(self.cached)
        used = {block for block, count in enumerate(self.references) if count > 0}
        if len(free) != len(self.free):
            problems.append("a block is free twice")
        if free & cached or free & used or cached & used or len(free) + len(cached) + len(used) != self.num_blocks:
            problems.append("free + cached + used is not all blocks")
        if any(count < 0 for count in self.references):
            problems.append("a block has been dropped too often")
        if {name: block for block, name in self.name_of.items()} != self.block_of:
            problems.append("names and blocks differ")
        return problems
