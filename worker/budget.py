"""How a worker's memory is spent: bytes of weights and KV cache, blocks, and what they hold. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tercet.errors import StartupError

_MIB = 1 << 20
# A CUDA context takes about so much. It is there before a process can ask what is free.
_CONTEXT_BYTES = 512 << 20
# Of a GPU that others use, too: what they, and the driver, may take in addition.
_SPARE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Usage:
    """What a worker needs beside its KV cache, in bytes: estimated while nothing is loaded, or measured."""

    weights: int
    workspace: int
    graphs: int = 0
    libraries: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.workspace + self.graphs + self.libraries


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes of a device that a worker may use; `why` says for people what they are, `remedy` how to get more."""

    size: int
    why: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory of a worker, in bytes and blocks. `room` is None where nobody knows what is there."""

    usage: Usage
    kv_block_bytes: int
    block_size: int
    num_blocks: int
    max_model_len: int
    num_swap_blocks: int = 0
    room: Room | None = None

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
        usage = self.usage
        lines = [_line("weights", usage.weights)]
        lines.append(_line("workspace", usage.workspace, "activations and logits of one step"))
        if usage.graphs:
            lines.append(_line("graphs", usage.graphs, "captured steps"))
        if usage.libraries:
            lines.append(_line("libraries", usage.libraries, "what CUDA and its libraries keep"))
        blocks = f"{self.num_blocks:,} blocks of {self.block_size} tokens, {self.kv_block_bytes / 1024:,.1f} KiB each"
        lines.append(_line("KV cache", self.kv_bytes, blocks))
        lines.append(
            f"tokens in cache   {self.num_tokens:10,}      = {self.full_length_sequences:.1f} sequences of "
            f"max_model_len {self.max_model_len:,}"
        )
        if self.room is not None:
            left = self.room.size - usage.total - self.kv_bytes
            lines.append(_line("left", left, f"of {self.room.size / _MIB:,.0f} MiB: {self.room.why}"))
        if self.num_swap_blocks:
            blocks = f"{self.num_swap_blocks:,} blocks for preempted sequences"
            lines.append(_line("swap space", self.swap_bytes, f"{blocks}, in host memory"))
        return lines


def host_room(available: int | None, memory_fraction: float) -> Room | None:
    """`memory_fraction` of what a host has free; None if that is unknown."""
    if available is None:
        return None
    part = "" if memory_fraction == 1 else f"worker.memory_fraction {memory_fraction:.3g} of "
    return Room(int(available * memory_fraction), f"{part}what is free")


def gpu_room(free: int, total: int, utilization: float) -> Room:
    """`utilization` of all memory of a GPU, the CUDA context included, if that much is free; else what is."""
    size = int(total * utilization) - min(total - free, _CONTEXT_BYTES)
    card = f"the GPU's {total / _MIB:,.0f} MiB"
    if size <= free - _SPARE_BYTES:
        why = f"worker.gpu_memory_utilization {utilization:.3g} of {card}, without the CUDA context"
        return Room(max(0, size), why, "raise worker.gpu_memory_utilization, ")
    why = f"what others leave of {card}, less {_SPARE_BYTES // _MIB} MiB"
    return Room(max(0, free - _SPARE_BYTES), why, "end what else runs on the GPU, ")


def plan_budget(
    *,
    usage: Usage,
    room: Room | None,
    kv_cache_memory: int,
    kv_block_bytes: int,
    block_size: int,
    max_model_len: int,
    swap_space: int = 0,
    host_available: int | None = None,
    device_is_host: bool = True,
) -> Budget:
    """Divides `kv_cache_memory` bytes of the device, or if that is 0 what `usage` leaves of `room`, into blocks, and
    `swap_space` bytes of its host.

    `host_available` is the free memory of the host, which is not asked if it is the device; None if unknown. Raises
    StartupError, with what is needed, what is there and which setting to change, if not one block fits, memory does
    not suffice, or what is left of `room` holds no sequence of `max_model_len` tokens.
    """
    num_swap_blocks = swap_space // kv_block_bytes
    if swap_space and num_swap_blocks < 1:
        raise StartupError(
            f"worker.swap_space: {swap_space:,} bytes hold no KV block; one block of {block_size} tokens needs "
            f"{kv_block_bytes:,} bytes: raise it, or set it to 0 to recompute preempted sequences"
        )
    if kv_cache_memory:
        num_blocks, cache = kv_cache_memory // kv_block_bytes, "KV cache"
        if num_blocks < 1:
            raise StartupError(
                f"worker.kv_cache_memory: {kv_cache_memory:,} bytes hold no KV block; one block of {block_size} tokens "
                f"needs {kv_block_bytes:,} bytes: raise worker.kv_cache_memory or lower worker.block_size"
            )
        to_lower = ["worker.kv_cache_memory", "worker.max_num_seqs", "worker.max_num_batched_tokens"]
    else:
        assert room is not None, "who does not know its device says how large the cache is"
        fewest = math.ceil(max_model_len / block_size)
        num_blocks = max(fewest, (room.size - usage.total) // kv_block_bytes)
        cache = f"KV cache for {max_model_len:,} tokens"
        to_lower = ["model.max_model_len", "worker.max_num_seqs", "worker.max_num_batched_tokens"]
    budget = Budget(usage, kv_block_bytes, block_size, num_blocks, max_model_len, num_swap_blocks, room)
    parts = {"weights": usage.weights, "workspace": usage.workspace, cache: budget.kv_bytes}
    parts |= {name: size for name, size in (("graphs", usage.graphs), ("libraries", usage.libraries)) if size}
    if num_swap_blocks and device_is_host:
        parts["swap space"] = budget.swap_bytes
        to_lower.insert(1, "worker.swap_space")
    needed = sum(parts.values())
    if room is not None and needed > room.size:
        raise StartupError(
            f"not enough memory: {' + '.join(f'{name} {size / _MIB:,.0f} MiB' for name, size in parts.items())} = "
            f"{needed / _MIB:,.0f} MiB are needed, {room.size / _MIB:,.0f} MiB are available ({room.why}): "
            f"{room.remedy}lower {', '.join(to_lower[:-1])} or {to_lower[-1]}, or choose a smaller model"
        )
    if not device_is_host and host_available is not None and budget.swap_bytes > host_available:
        raise StartupError(
            f"not enough host memory: swap space {budget.swap_bytes / _MIB:,.0f} MiB is needed, "
            f"{host_available / _MIB:,.0f} MiB are available: lower worker.swap_space"
        )
    return budget


def _line(name: str, size: int, what: str = "") -> str:
    return f"{name:<18}{size / _MIB:10,.0f} MiB{f'  = {what}' if what else ''}"
