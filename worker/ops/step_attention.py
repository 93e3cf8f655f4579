"""Paged attention on a GPU: what all layers of a step share. Knows no layers, no pool.

Dim letters: B sequences, T tokens in the batch, H query heads, G KV heads, D head size, N blocks, S slots per block.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .dtypes import CACHE_DTYPES, KERNEL_DTYPES, KERNELS_BUILT, stream_of

if KERNELS_BUILT:
    from .. import _kernels
if TYPE_CHECKING:
    from .attention import AttentionBatch

# Kernels read 16 bytes at once.
_ALIGNMENT = 16


@functools.cache
def serves_fp8(device: torch.device, head_dim: int, block_size: int) -> bool:
    """Whether `device` has kernels for caches of float8_e4m3fn."""
    if not KERNELS_BUILT or device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return False
    return head_dim in (64, 128) and block_size >= 8 and block_size & (block_size - 1) == 0


def attention_workspace(
    dtype: torch.dtype, num_heads: int, cache: Tensor, num_sequences: int, num_tokens: int, table_width: int,
    total_context: int | None, num_chunked: int | None, windows: Iterable[int | None] = (None,),
) -> Tensor:  # fmt: skip
    """Memory for steps of at most so many sequences, tokens, blocks a table and tokens of context, with layers of these
    `windows`: int32, on the device of `cache` [N, G, S, D]; empty where attention needs none. q is [T, `num_heads`, D]
    of `dtype`.
    """
    words = 0
    if KERNELS_BUILT and cache.is_cuda and dtype in KERNEL_DTYPES:
        words = sum(
            _step(
                dtype, num_heads, cache.dtype, cache.shape, cache.device, (0, 0, 0), num_sequences, num_tokens,
                table_width, total_context, num_chunked, window or 0,
            ).workspace_words
            for window in set(windows)
        )  # fmt: skip
    return torch.empty(words, dtype=torch.int32, device=cache.device)


def _step(
    dtype: torch.dtype, num_heads: int, cache_dtype: torch.dtype, cache_shape: torch.Size, device: torch.device,
    addresses: tuple[int, int, int], num_sequences: int, num_tokens: int, table_width: int, total_context: int | None,
    num_chunked: int | None, window: int,
) -> _kernels.StepAttention:  # fmt: skip
    num_blocks, num_kv_heads, block_size, head_dim = cache_shape
    return _kernels.StepAttention(
        KERNEL_DTYPES[dtype], CACHE_DTYPES[cache_dtype], head_dim, num_heads, num_kv_heads, block_size, num_blocks,
        *addresses, num_sequences, num_tokens, table_width, -1 if total_context is None else total_context,
        -1 if num_chunked is None else num_chunked, torch.cuda.get_device_properties(device).multi_processor_count,
        window,
    )  # fmt: skip


class StepAttention:
    """The plan of a step's attention, made on the device by the call of the first layer with this window, and the
    memory it works in.

    What the batch's tensors hold is read then and not checked: a block outside the cache or a context longer than its
    table gives wrong numbers, never an access outside the tensors. For a CUDA graph the AttentionBatch is made while
    the graph is captured, so that each replay plans anew.
    """

    def __init__(
        self, batch: AttentionBatch, dtype: torch.dtype, num_heads: int, cache_dtype: torch.dtype,
        cache_shape: torch.Size, window: int,
    ) -> None:  # fmt: skip
        """For q [T, H, D] of `dtype` and caches [N, G, S, D] = `cache_shape`, on the device of `batch.slots`, and a
        window of so many tokens, or 0. Of the batch's workspace it takes what those planned before have left.

        Raises ValueError if the batch's workspace is too small or elsewhere.
        """
        device = batch.slots.device
        # Kept, because the kernels have nothing but their addresses.
        query_starts, context_lens = batch.query_starts.to(device), batch.context_lens.to(device)
        self._rows = query_starts, context_lens, batch.block_tables
        self._step = _step(
            dtype, num_heads, cache_dtype, cache_shape, device,
            (query_starts.data_ptr(), context_lens.data_ptr(), batch.block_tables.data_ptr()), context_lens.shape[0],
            batch.slots.shape[0], batch.block_tables.shape[1], batch.total_context, batch.num_chunked, window,
        )  # fmt: skip
        words, workspace = self._step.workspace_words, batch.workspace
        self.num_words = words
        if workspace is None:
            workspace = torch.empty(words, dtype=torch.int32, device=device)
        else:
            first = sum(step.num_words for step in batch.planned.values())
            if workspace.device != device or workspace.dtype is not torch.int32 or len(workspace) < first + words:
                raise ValueError(
                    f"the workspace must have {first + words:,} int32 on {device}, is {workspace.dtype} "
                    f"{list(workspace.shape)} on {workspace.device}"
                )
            workspace = workspace[first:]
        self._workspace = workspace
        self._step.prepare(workspace.data_ptr(), stream_of(batch.slots))

    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, scale: float, kv_scales: tuple[float, float], softcap: float
    ) -> Tensor:
        """q [T, H, D] over contiguous caches of the shape that was planned for -> [T, H, D]. `scale` is above 0; a
        `softcap` of 0 is none."""
        token_stride, head_stride, element_stride = q.stride()
        vector = _ALIGNMENT // q.element_size()
        if element_stride != 1 or token_stride % vector or head_stride % vector or q.data_ptr() % _ALIGNMENT:
            q = q.contiguous()
            token_stride, head_stride, _ = q.stride()
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        self._step.attend(
            q.data_ptr(), token_stride, head_stride, k_cache.data_ptr(), v_cache.data_ptr(), out.data_ptr(), scale,
            *kv_scales, softcap, stream_of(q),
        )  # fmt: skip
        return out
