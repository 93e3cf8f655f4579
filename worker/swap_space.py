"""Host memory for the KV blocks of sequences that had to give way. Knows no sequences, no block tables."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch

from . import _core
from .kv_cache import Copied, KVCache
from .ops.block_copy import BlockTensors, copy_blocks

# Whoever needs some of the blocks that leave waits for so many, not for all: a millisecond or two of a large model.
_BLOCKS_AT_ONCE = 8

# More than stays in a CPU's caches, as what a preempted sequence leaves behind does.
_MEASURED_BYTES = 64 << 20
_MEASURED_TIMES = 3


def _pin(owner: object, tensors: list[torch.Tensor]) -> None:
    """Pins the memory of tensors for as long as `owner` lives. What torch pins by itself it rounds up to a power of
    two: up to twice of what was asked for. Raises RuntimeError if the host refuses."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    for tensor in tensors:
        if tensor.nbytes:
            torch.cuda.check_error(int(runtime.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0)))
            weakref.finalize(owner, _unpin, tensor)


def _unpin(tensor: torch.Tensor) -> None:
    # Copies of it may be under way, but for a device that has failed.
    with suppress(RuntimeError):
        torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())  # type: ignore[no-untyped-call]


class SwapSpace:
    """`num_blocks` blocks of host memory, each for one block of a KV cache in all its layers. One thread owns it.

    Plain memory for a cache on a CPU. For one on a GPU it is pinned, and copies go their own way, beside what is
    computed: they find what the current stream has done before, and what is reserved of the cache meanwhile waits on
    the GPU for those that still concern it. Copies keep their order among themselves.
    """

    def __init__(self, kv_cache: KVCache, num_blocks: int) -> None:
        """Takes the memory. Raises RuntimeError if there is too little."""
        self.num_total = num_blocks
        self._kv_cache = kv_cache
        self._device = kv_cache.blocks
        self._on_gpu = self._device.device.type != "cpu"
        host = [
            torch.empty((num_blocks, *self._device.block_shape), dtype=tensor.dtype) for tensor in self._device.tensors
        ]
        if self._on_gpu:
            _pin(self, host)
        self._host = BlockTensors(host)
        self._free = list(range(num_blocks))
        self._stream = torch.cuda.Stream(self._device.device) if self._on_gpu else None  # type: ignore[no-untyped-call]
        self.block_ns = 0  # to move one block between device and host, in nanoseconds; 0 until it is measured

    @property
    def num_free(self) -> int:
        """Blocks with no content."""
        return len(self._free)

    def save(self, blocks: Sequence[int]) -> list[int]:
        """Copies blocks of the KV cache here; returns where they are. The caller has seen that `num_free` suffices, and
        may give them back at once."""
        assert len(blocks) <= len(self._free)
        host_blocks = [self._free.pop() for _ in blocks]
        for first in range(0, len(blocks), _BLOCKS_AT_ONCE):
            some = slice(first, first + _BLOCKS_AT_ONCE)
            with self._copying(blocks[some]):
                copy_blocks(self._device, self._host, blocks[some], host_blocks[some])
        return host_blocks

    def load(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> Copied | None:
        """Copies what is in `host_blocks` back to blocks of the KV cache; it stays here too until `release`. They must
        not be read before that has been done; None: it is."""
        with self._copying(blocks) as copied:
            copy_blocks(self._host, self._device, host_blocks, blocks)
        return copied

    @contextmanager
    def _copying(self, blocks: Sequence[int]) -> Iterator[Copied | None]:
        if self._stream is None:
            yield None
            return
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(self._device.device))
        with torch.cuda.stream(self._stream):
            yield copied
            copied.record()
        self._kv_cache.keep_until(copied, blocks)

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
