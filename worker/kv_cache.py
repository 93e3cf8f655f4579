"""The KV cache of a worker: tensors for all layers, and the pool that hands out their blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

from . import _core
from .messages import BlockCounts, KvEvents
from .model.config import ModelConfig
from .ops.block_copy import BlockTensors, copy_blocks


class Copied(Protocol):
    """Recorded behind copies of blocks: a torch.cuda.Event."""

    def query(self) -> bool:
        """Whether they are done."""

    def synchronize(self) -> None:
        """Waits until they are."""

    def wait(self) -> None:
        """Lets what the current stream is given from now on wait for them."""


class KVCache:
    """`num_blocks` blocks of `block_size` slots for every layer. One thread owns it.

    Memory is not touched before it is written; readers must not look beyond a sequence's context.
    """

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device,
        enable_prefix_caching: bool = True,
    ) -> None:  # fmt: skip
        self.pool = _core.BlockPool(num_blocks, block_size, enable_prefix_caching)
        shape = (num_blocks, config.num_kv_heads, block_size, config.head_dim)  # [N, G, S, D]
        self.layers = [
            (torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device))
            for _ in range(config.num_layers)
        ]
        self.blocks = BlockTensors([tensor for layer in self.layers for tensor in layer])
        self._prefix_caching = enable_prefix_caching
        # Blocks that are being copied beside what is computed, and what is recorded when that is done.
        self._copying: dict[int, Copied] = {}

    def new_table(self, salt: bytes) -> _core.BlockTable:
        """An empty block table whose prefix hashes start from `salt`."""
        return _core.BlockTable(self.pool, salt)

    def reserve(self, table: _core.BlockTable, num_tokens: int) -> None:
        """Makes room in `table` for `num_tokens` tokens in all; a last block that a fork shares becomes its own copy.

        Raises `_core.OutOfBlocks` and changes nothing if the pool has too few blocks.
        """
        num_blocks = table.num_blocks
        copies = table.reserve(num_tokens)
        if self._copying:
            self._wait_for([*table.blocks()[num_blocks:], *(destination for _, destination in copies)])
        if copies:
            sources, destinations = zip(*copies, strict=True)
            copy_blocks(self.blocks, self.blocks, sources, destinations)

    def keep_until(self, copied: Copied, blocks: Iterable[int]) -> None:
        """Whoever reserves one of `blocks` finds it when that has been done, in the order of the current stream."""
        self._copying = {block: event for block, event in self._copying.items() if not event.query()}
        self._copying |= dict.fromkeys(blocks, copied)

    def _wait_for(self, blocks: Iterable[int]) -> None:
        events = {self._copying.pop(block) for block in blocks if block in self._copying}
        for event in events:
            event.wait()

    def counts(self) -> BlockCounts:
        """How the pool is spent now."""
        return BlockCounts(self.pool.num_free, self.pool.num_cached, self.pool.num_used)

    def contents(self) -> KvEvents | None:
        """All that the prefix cache has, as the first event for somebody new; None without prefix caching."""
        if not self._prefix_caching:
            return None
        self.pool.take_events()
        return KvEvents(True, (), tuple(self.pool.published_keys().tolist()))

    def changes(self) -> KvEvents | None:
        """What the prefix cache lost and got since the last `contents` or `changes`; None if nothing."""
        removed, stored = self.pool.take_events()
        if not (len(removed) or len(stored)):
            return None
        return KvEvents(False, tuple(removed.tolist()), tuple(stored.tolist()))

    def check(self) -> None:
        """Raises _core.PoolCorrupt naming the first broken invariant of the pool and its tables."""
        self.pool.check()
