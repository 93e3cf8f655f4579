"""The KV cache of a worker: tensors for all layers, and the pool that hands out their blocks."""

from __future__ import annotations

import torch

from . import _core
from .messages import BlockCounts
from .model.config import ModelConfig


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

    def new_table(self, salt: bytes) -> _core.BlockTable:
        """An empty block table whose prefix hashes start from `salt`."""
        return _core.BlockTable(self.pool, salt)

    def reserve(self, table: _core.BlockTable, num_tokens: int) -> None:
        """Makes room in `table` for `num_tokens` tokens in all; a last block that a fork shares becomes its own copy.

        Raises `_core.OutOfBlocks` and changes nothing if the pool has too few blocks.
        """
        for source, destination in table.reserve(num_tokens):
            for k_cache, v_cache in self.layers:
                k_cache[destination] = k_cache[source]
                v_cache[destination] = v_cache[source]

    def counts(self) -> BlockCounts:
        """How the pool is spent now."""
        return BlockCounts(self.pool.num_free, self.pool.num_cached, self.pool.num_used)

    def check(self) -> None:
        """Raises _core.PoolCorrupt naming the first broken invariant of the pool and its tables."""
        self.pool.check()
