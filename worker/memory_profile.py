"""How much memory of a GPU a model's steps need: measured before the KV cache takes the rest.

The largest steps are computed, and all graphs captured, on a cache of one block.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import structlog
import torch

from tercet.errors import StartupError

from .budget import Budget, Usage
from .columns import StepShape
from .kv_cache import KVCache
from .model.decoder import Model
from .ops.sampler import sample_packed
from .step_rows import StepRows
from .step_sizes import max_context

log = structlog.get_logger()

# Of what a step took from an empty allocator, this part more is kept for it: beside a KV cache and captured steps its
# tensors fall into other segments, some of which stay too small for the next tensor. A fifth was seen to be missing.
FRAGMENTS = 4


class DeviceMemory(Protocol):
    """What a device has given, in bytes, since the beginning, which is before anything was loaded."""

    def taken(self) -> int:
        """By the driver's figures: whoever took it."""

    def held(self) -> int:
        """By the allocator of tensors, used or not; part of what is taken."""

    def peak(self) -> int:
        """The most that was held since `settle`."""

    def settle(self) -> None:
        """Waits for the device, and gives back what no tensor uses."""

    def free(self) -> int:
        """What the driver would still give."""

    def limit(self, size: int, more: int) -> None:
        """Lets the allocator take no more than makes `size` bytes with what is taken beside it, but in any case `more`
        than it holds: a neighbour that starts meanwhile is counted among what is taken."""


class CudaMemory:
    """The DeviceMemory of a GPU, from now on."""

    def __init__(self, device: torch.device) -> None:
        # Not all of torch's functions take a device without its number.
        self._device = torch.cuda.current_device() if device.index is None else device.index
        self._free_at_first = self.free()
        self._held_at_first = torch.cuda.memory_reserved(self._device)

    def taken(self) -> int:
        """See DeviceMemory."""
        return self._free_at_first - self.free()

    def held(self) -> int:
        """See DeviceMemory."""
        return torch.cuda.memory_reserved(self._device) - self._held_at_first

    def peak(self) -> int:
        """See DeviceMemory."""
        return torch.cuda.max_memory_reserved(self._device) - self._held_at_first

    def settle(self) -> None:
        """See DeviceMemory."""
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def free(self) -> int:
        """See DeviceMemory."""
        return torch.cuda.mem_get_info(self._device)[0]

    def limit(self, size: int, more: int) -> None:
        """See DeviceMemory. Before it would take more it gives back what no tensor uses: fragments do not pile up."""
        beside = max(0, self.taken() - self.held())
        total = torch.cuda.mem_get_info(self._device)[1]
        allowed = max(size - beside, self.held() + more)
        part = (allowed + self._held_at_first) / total
        torch.cuda.set_per_process_memory_fraction(min(1.0, part), self._device)


def device_name(device: torch.device) -> str:
    """A name of a GPU that all processes of the host have for it."""
    return f"gpu-{torch.cuda.get_device_properties(device).uuid}"


def measure(memory: DeviceMemory, run_steps: Callable[[], object], capture: Callable[[], object] | None) -> Usage:
    """What a loaded model needs of `memory` beside its KV cache: `run_steps` computes its largest steps, `capture`
    returns all that captured steps keep."""
    memory.settle()
    weights = memory.held()
    run_steps()
    peak = memory.peak()
    memory.settle()
    workspace = peak - memory.held()
    workspace += workspace // FRAGMENTS
    before = memory.taken()
    graphs = 0
    if capture is not None:
        captured = capture()
        memory.settle()
        graphs = memory.taken() - before
        del captured
        memory.settle()
    # What stays is what libraries keep, in tensors (cuBLAS) or elsewhere.
    return Usage(weights, workspace, max(0, graphs), max(0, memory.taken() - weights))


def keep_within(memory: DeviceMemory, budget: Budget) -> None:
    """Holds a worker that has all it keeps to its budget from now on.

    Raises StartupError if the largest step has no memory any more.
    """
    memory.settle()
    room, workspace = budget.room, budget.usage.workspace
    assert room is not None, "the memory of a GPU is known"
    taken, free = memory.taken(), memory.free()
    log.info("memory_taken", taken=taken, free=free, workspace=workspace, room=room.size)
    if free < workspace:
        raise StartupError(
            f"not enough memory: a step needs {workspace >> 20:,} MiB, {free >> 20:,} MiB are left on the GPU after "
            f"{taken >> 20:,} MiB were taken by this worker and others: end what else runs on the GPU, or lower "
            "worker.gpu_memory_utilization or worker.kv_cache_memory"
        )
    if taken + workspace > room.size:
        log.warning("memory_beyond_budget", taken=taken, workspace=workspace, room=room.size)
    memory.limit(room.size, workspace)


def run_largest_steps(
    model: Model, kv_cache: KVCache, max_num_batched_tokens: int, max_num_seqs: int, num_cache_tokens: int
) -> None:
    """Computes a step of as many tokens as may be, and one of as many decoding sequences; contexts as long as a cache
    of `num_cache_tokens` tokens allows, all in the first block of `kv_cache`, which is not to be read afterwards."""
    max_model_len = model.config.max_model_len
    num_tokens = min(max_num_batched_tokens, max_num_seqs * max_model_len)
    num_rows = min(max_num_seqs, num_tokens)
    table_width = -(-max_model_len // kv_cache.pool.block_size)
    rows = StepRows(num_tokens, num_rows, table_width, kv_cache.blocks.device)
    most = max_context(num_rows, max_model_len, num_cache_tokens)
    for size in sorted({num_tokens, num_rows}):
        _run_step(model, kv_cache, rows, StepShape(size, num_rows, num_rows, most))


@torch.inference_mode()
def _run_step(model: Model, kv_cache: KVCache, rows: StepRows, shape: StepShape) -> None:
    num_rows = shape.num_rows
    rows.pad(StepShape(0, 0, 0, 0), shape.num_tokens, num_rows)
    starts = torch.arange(num_rows + 1) * shape.num_tokens // num_rows
    rows.host.query_starts[: num_rows + 1] = starts
    longest = min(shape.total_context // num_rows, model.config.max_model_len)
    rows.host.slots[: shape.num_tokens] = 0
    rows.host.context_lens[:num_rows] = starts.diff().clamp(min=longest)
    rows.upload(num_rows)
    device = rows.device
    logits = model.forward(
        device.token_ids[: shape.num_tokens], device.positions[: shape.num_tokens], kv_cache.layers,
        rows.attention(shape), device.logit_rows[:num_rows],
    )  # fmt: skip
    # As penalties do, which change one of them.
    raw = logits.clone()
    sample_packed(logits, device.params[:num_rows]).cpu()  # waits: the columns are filled anew by the next step
    del raw


@contextmanager
def enough_memory(what: str) -> Iterator[None]:
    """Raises StartupError if the device refuses memory for `what`, or fails over it."""
    try:
        yield
    except RuntimeError as error:  # OutOfMemoryError is one; the driver's own refusals are not
        reason = str(error).partition("\n")[0]
        if not isinstance(error, torch.OutOfMemoryError) and "out of memory" not in reason:
            if "CUDA" not in reason and "no kernel image" not in reason:
                raise
            log.error("device_failed", exc_info=True)
            raise StartupError(
                f"the GPU failed while {what} were made: {reason}; see whether driver, torch and worker._kernels were "
                "built for this GPU (tercet doctor, TERCET_CUDA_ARCHS)"
            ) from error
        raise StartupError(
            f"not enough memory for {what}: end what else runs on the device, or lower worker.kv_cache_memory, "
            f"worker.max_num_seqs or worker.max_num_batched_tokens: {reason}"
        ) from error
