"""How a worker's memory is spent: bytes of weights and KV cache, blocks, and what they hold. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tercet.errors import StartupError

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory of a worker, in bytes and blocks."""

    weight_bytes: int
    workspace_bytes: int
    kv_block_bytes: int
    block_size: int
    num_blocks: int
    max_model_len: int

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole KV cache."""
        return self.num_blocks * self.kv_block_bytes

    @property
    def num_tokens(self) -> int:
        """Tokens the KV cache holds."""
        return self.num_blocks * self.block_size

    @property
    def full_length_sequences(self) -> float:
        """Sequences of max_model_len tokens that fit at once."""
        return self.num_blocks / math.ceil(self.max_model_len / self.block_size)

    def lines(self) -> list[str]:
        """The report, for people."""
        return [
            f"weights           {self.weight_bytes / _MIB:10,.0f} MiB",
            f"workspace         {self.workspace_bytes / _MIB:10,.0f} MiB  = activations and logits of one step",
            f"KV cache          {self.kv_bytes / _MIB:10,.0f} MiB  = {self.num_blocks:,} blocks of {self.block_size} "
            f"tokens, {self.kv_block_bytes / 1024:,.1f} KiB each",
            f"tokens in cache   {self.num_tokens:10,}      = {self.full_length_sequences:.1f} sequences of "
            f"max_model_len {self.max_model_len:,}",
        ]


def plan_budget(
    *,
    weight_bytes: int,
    workspace_bytes: int,
    kv_block_bytes: int,
    block_size: int,
    kv_cache_memory: int,
    available: int | None,
    max_model_len: int,
) -> Budget:
    """Divides `kv_cache_memory` bytes into blocks.

    `available` is the memory that may be taken, None if unknown. Raises StartupError, with what is needed, what is
    there and which setting to change, if not one block fits or memory does not suffice.
    """
    num_blocks = kv_cache_memory // kv_block_bytes
    if num_blocks < 1:
        raise StartupError(
            f"worker.kv_cache_memory: {kv_cache_memory:,} bytes hold no KV block; one block of {block_size} tokens "
            f"needs {kv_block_bytes:,} bytes: raise worker.kv_cache_memory or lower worker.block_size"
        )
    budget = Budget(weight_bytes, workspace_bytes, kv_block_bytes, block_size, num_blocks, max_model_len)
    needed = weight_bytes + workspace_bytes + budget.kv_bytes
    if available is not None and needed > available:
        raise StartupError(
            f"not enough memory: weights {weight_bytes / _MIB:,.0f} MiB + workspace "
            f"{workspace_bytes / _MIB:,.0f} MiB + KV cache {budget.kv_bytes / _MIB:,.0f} MiB = "
            f"{needed / _MIB:,.0f} MiB are needed, {available / _MIB:,.0f} MiB are available: lower "
            "worker.kv_cache_memory or worker.max_num_batched_tokens, or choose a smaller model"
        )
    return budget
