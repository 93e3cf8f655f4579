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
        self.block_size = block_size
        self.pool = _core.BlockPool(num_blocks, block_size, enable_prefix_caching)
        shape = (num_blocks, config.num_kv_heads, block_size, config.head_dim)  # [N, G, S, D]
        self.layers = [
            (torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device))
            for _ in range(config.num_layers)
        ]

    def new_table(self, salt: bytes) -> _core.BlockTable:
        """An empty block table whose prefix hashes start from `salt`."""
        return _core.BlockTable(self.pool, salt)

    def counts(self) -> BlockCounts:
        """How the pool is spent now."""
        return BlockCounts(self.pool.num_free, self.pool.num_cached, self.pool.num_used)

    def check(self) -> None:
        """Raises _core.PoolCorrupt naming the first broken invariant of the pool and its tables."""
        self.pool.check()
