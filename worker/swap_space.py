"""Host memory for the KV blocks of sequences that had to give way. Knows no sequences, no block tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import torch

from . import _core
from .kv_cache import KVCache
from .ops.block_copy import BlockTensors, copy_blocks

# More than stays in a CPU's caches, as what a preempted sequence leaves behind does.
_MEASURED_BYTES = 64 << 20
_MEASURED_TIMES = 3


class SwapSpace:
    """`num_blocks` blocks of host memory, each for one block of a KV cache in all its layers. One thread owns it.

    Pinned where the cache is on a GPU, so that blocks move without a copy in between; plain otherwise.
    """

    def __init__(self, kv_cache: KVCache, num_blocks: int) -> None:
        """Takes the memory. Raises RuntimeError if there is too little."""
        self.num_total = num_blocks
        self._device = kv_cache.blocks
        self._on_gpu = self._device.device.type != "cpu"
        self._host = BlockTensors(
            [
                torch.empty((num_blocks, *self._device.block_shape), dtype=tensor.dtype, pin_memory=self._on_gpu)
                for tensor in self._device.tensors
            ]
        )
        self._free = list(range(num_blocks))
        self.block_ns = 0  # to move one block between device and host, in nanoseconds; 0 until it is measured

    @property
    def num_free(self) -> int:
        """Blocks with no content."""
        return len(self._free)

    def save(self, blocks: Sequence[int]) -> list[int]:
        """Copies blocks of the KV cache here; returns where they are. The caller has seen that `num_free` suffices."""
        assert len(blocks) <= len(self._free)
        host_blocks = [self._free.pop() for _ in blocks]
        copy_blocks(self._device, self._host, blocks, host_blocks)
        return host_blocks

    def load(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """Copies what is in `host_blocks` back to blocks of the KV cache; it stays here too until `release`."""
        copy_blocks(self._host, self._device, host_blocks, blocks)

    def release(self, host_blocks: Iterable[int]) -> None:
        """The content of `host_blocks` is needed no more."""
        self._free.extend(host_blocks)

    def check(self, held: Iterable[Sequence[int]]) -> None:
        """Raises `_core.PoolCorrupt` unless each block is either free or in one of `held`, and there once."""
        known = sorted([*self._free, *(block for blocks in held for block in blocks)])
        if known != list(range(self.num_total)):
            raise _core.PoolCorrupt(f"the {self.num_total} swap blocks do not add up: {len(self._free)} are free")

    def measure(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Sets `block_ns`, in warm memory. `clock` gives seconds.

        Overwrites blocks on both sides: nothing may be in use.
        """
        most = max(1, _MEASURED_BYTES // (self._device.block_bytes * len(self._device.tensors)))
        blocks = list(range(min(self.num_total, self._device.num_blocks, most)))
        if not blocks:
            return
        best = min(self._round_trip_s(blocks, clock) for _ in range(1 + _MEASURED_TIMES))
        self.block_ns = max(1, round(best / 2 / len(blocks) * 1e9))

    def _round_trip_s(self, blocks: list[int], clock: Callable[[], float]) -> float:
        started = clock()
        host_blocks = self.save(blocks)
        self.load(host_blocks, blocks)
        if self._on_gpu:
            torch.cuda.synchronize(self._device.device)
        self.release(host_blocks)
        return clock() - started
