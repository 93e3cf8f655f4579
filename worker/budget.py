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
    num_swap_blocks: int = 0
    graph_bytes: int = 0

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole KV cache."""
        return self.num_blocks * self.kv_block_bytes

    @property
    def swap_bytes(self) -> int:
        """Bytes of host memory for the KV blocks of preempted sequences."""
        return self.num_swap_blocks * self.kv_block_bytes

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
        lines = [
            f"weights           {self.weight_bytes / _MIB:10,.0f} MiB",
            f"workspace         {self.workspace_bytes / _MIB:10,.0f} MiB  = activations and logits of one step",
            f"KV cache          {self.kv_bytes / _MIB:10,.0f} MiB  = {self.num_blocks:,} blocks of {self.block_size} "
            f"tokens, {self.kv_block_bytes / 1024:,.1f} KiB each",
            f"tokens in cache   {self.num_tokens:10,}      = {self.full_length_sequences:.1f} sequences of "
            f"max_model_len {self.max_model_len:,}",
        ]
        if self.graph_bytes:
            lines.insert(2, f"graphs            {self.graph_bytes / _MIB:10,.0f} MiB  = captured steps")
        if self.num_swap_blocks:
            blocks = f"{self.num_swap_blocks:,} blocks for preempted sequences"
            lines.append(f"swap space        {self.swap_bytes / _MIB:10,.0f} MiB  = {blocks}, in host memory")
        return lines


def plan_budget(
    *,
    weight_bytes: int,
    workspace_bytes: int,
    kv_block_bytes: int,
    block_size: int,
    kv_cache_memory: int,
    available: int | None,
    max_model_len: int,
    swap_space: int = 0,
    host_available: int | None = None,
    device_is_host: bool = True,
    memory_fraction: float = 1.0,
    graph_bytes: int = 0,
) -> Budget:
    """Divides `kv_cache_memory` bytes of the device and `swap_space` bytes of its host into blocks.

    `available` is the free memory of the device, of which `memory_fraction` may be taken, `host_available` that of the
    host, which is not asked if they are the same; None if unknown. Raises StartupError, with what is needed, what is
    there and which setting to change, if not one block fits or memory does not suffice.
    """
    num_blocks = kv_cache_memory // kv_block_bytes
    if num_blocks < 1:
        raise StartupError(
            f"worker.kv_cache_memory: {kv_cache_memory:,} bytes hold no KV block; one block of {block_size} tokens "
            f"needs {kv_block_bytes:,} bytes: raise worker.kv_cache_memory or lower worker.block_size"
        )
    num_swap_blocks = swap_space // kv_block_bytes
    if swap_space and num_swap_blocks < 1:
        raise StartupError(
            f"worker.swap_space: {swap_space:,} bytes hold no KV block; one block of {block_size} tokens needs "
            f"{kv_block_bytes:,} bytes: raise it, or set it to 0 to recompute preempted sequences"
        )
    budget = Budget(
        weight_bytes, workspace_bytes, kv_block_bytes, block_size, num_blocks, max_model_len, num_swap_blocks,
        graph_bytes,
    )  # fmt: skip
    parts = {"weights": weight_bytes, "workspace": workspace_bytes, "KV cache": budget.kv_bytes}
    if graph_bytes:
        parts["graphs"] = graph_bytes
    settings = "worker.kv_cache_memory or worker.max_num_batched_tokens"
    if num_swap_blocks and device_is_host:
        parts["swap space"] = budget.swap_bytes
        settings = "worker.kv_cache_memory, worker.swap_space or worker.max_num_batched_tokens"
    needed = sum(parts.values())
    part = "" if memory_fraction == 1 else f" (worker.memory_fraction {memory_fraction:.3g} of what is free)"
    if available is not None and needed > (available := int(available * memory_fraction)):
        raise StartupError(
            f"not enough memory: {' + '.join(f'{name} {size / _MIB:,.0f} MiB' for name, size in parts.items())} = "
            f"{needed / _MIB:,.0f} MiB are needed, {available / _MIB:,.0f} MiB are available{part}: lower {settings}, "
            "or choose a smaller model"
        )
    if not device_is_host and host_available is not None and budget.swap_bytes > host_available:
        raise StartupError(
            f"not enough host memory: swap space {budget.swap_bytes / _MIB:,.0f} MiB is needed, "
            f"{host_available / _MIB:,.0f} MiB are available: lower worker.swap_space"
        )
    return budget
