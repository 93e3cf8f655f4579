"""Paged attention and KV writes over blocks [N, G, S, D]. Knows no layers, no sequences' text, no pool.

Dim letters: B sequences, T tokens in the batch, H query heads, G KV heads, D head size, N blocks, S slots per block.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .. import _core
from .dtypes import (
    CACHE_DTYPES,
    FP8,
    KERNEL_DTYPES,
    KERNELS_BUILT,
    MAX_HEAD_DIM,
    check_one_device,
    on_core,
    on_kernels,
    same_gpu,
    stream_of,
    wide_dtype,
)  # fmt: skip
from .step_attention import StepAttention, serves_fp8

if KERNELS_BUILT:
    from .. import _kernels


# Of the kernels for GPUs, which count in 32 bits: more than any context has.
_MOST_WINDOW = 1 << 30

KvScales = tuple[float, float]  # of K and V
UNSCALED: KvScales = (1.0, 1.0)


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Where the T tokens of a step stand. Tensors are contiguous and live on the cache's device; the first two may
    also both be on the CPU. They are checked once for all layers of the step: nobody may replace their storage later.

    Query token i of sequence b is token query_starts[b] + i of the batch and stands at position
    context_lens[b] - (query_starts[b + 1] - query_starts[b]) + i; it sees positions up to its own.

    On a GPU a batch may be padded, as steps that are captured are: by sequences of context 0 with a token or without,
    and by tokens behind the last sequence's. Nothing is read for these, what comes out for them is of no meaning, and
    their slots are -1. Raises ValueError on other dtypes or shapes, or more than one device.
    """

    query_starts: Tensor  # int32 [B + 1], cumulative query tokens
    context_lens: Tensor  # int32 [B], tokens in the KV cache, this step's included
    block_tables: Tensor  # int32 [B, max_blocks]; entries past a sequence's context are not read
    slots: Tensor  # int64 [T], block * S + offset of each token
    # Upper bounds where the host knows them, for a GPU. A result that they are too low for is of no meaning. The sum of
    # context_lens bounds the memory for what is merged, else the widest table for every sequence does; only for steps
    # of more tokens than sequences, or at most one token in each. The sequences with more than one token bound the
    # launch for these, which is left out at 0; None: any in steps of more tokens than sequences, else none.
    total_context: int | None = None
    num_chunked: int | None = None
    # What the step's attention works in (`attention_workspace`), for steps that follow each other on one stream, so
    # that captured ones do not each hold their own; None: memory of its own.
    workspace: Tensor | None = None
    # For `_core.paged_attention`, which is called once a layer: num_sequences to table_width.
    core_arguments: tuple[int, int, int, int, int] = field(init=False, repr=False, compare=False)
    # On a GPU, by dtype, H, the cache's dtype and shape, and window: what the layers share. Made by the first.
    planned: dict[tuple[torch.dtype, int, torch.dtype, torch.Size, int], StepAttention] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        num_sequences = self.context_lens.shape[0]
        _check("query_starts", self.query_starts, torch.int32, 1, num_sequences + 1)
        _check("context_lens", self.context_lens, torch.int32, 1, num_sequences)
        _check("block_tables", self.block_tables, torch.int32, 2, num_sequences)
        _check("slots", self.slots, torch.int64, 1, self.slots.shape[0])
        on_host = self.query_starts.is_cpu and self.context_lens.is_cpu
        check_one_device(
            query_starts=None if on_host else self.query_starts,
            context_lens=None if on_host else self.context_lens,
            block_tables=self.block_tables,
            slots=self.slots,
        )
        arguments = (
            num_sequences,
            self.query_starts.data_ptr(),
            self.context_lens.data_ptr(),
            self.block_tables.data_ptr(),
            self.block_tables.shape[1],
        )
        object.__setattr__(self, "core_arguments", arguments)


def _check(name: str, tensor: Tensor, dtype: torch.dtype, num_dims: int, length: int) -> None:
    if tensor.dtype != dtype or tensor.dim() != num_dims or tensor.shape[0] != length or not tensor.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous {dtype} with {num_dims} dimension(s) and {length} row(s), "
            f"is {tensor.dtype} {list(tensor.shape)} with strides {list(tensor.stride())}"
        )


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, scale: float, kv_scales: KvScales = UNSCALED,
    *, window: int | None = None, softcap: float | None = None,
) -> Tensor:  # fmt: skip
    """Causal attention of q [T, H, D] over k_cache, v_cache [N, G, S, D] -> [T, H, D].

    A query sees the last `window` of the positions up to its own, or all. Scores become softcap * tanh(score / softcap)
    where `softcap` is set; both are above 0.

    The caches are of q's dtype, or both float8_e4m3fn and to be multiplied by `kv_scales`, for which there are kernels
    on Hopper alone. Decode steps and prefill chunks mix freely. Positions at or past a sequence's context are never
    read. On the CPU in bfloat16 or float32 a token's result is bitwise the same alone and in any batch, for every
    chunking of its prefill and every number of threads; on a GPU it is the same alone and in any batch, and for every
    chunking but in chunks of one token, which are computed as decode steps are. Raises ValueError on shapes, dtypes,
    scales or devices that do not fit each other, on a window or cap that is not above 0, on the CPU also on such
    lengths and blocks.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_blocks, num_kv_heads, block_size, cache_dim = k_cache.shape
    slots = batch.slots
    if (
        v_cache.shape != k_cache.shape
        or cache_dim != head_dim
        or num_heads % num_kv_heads
        or slots.shape[0] != num_tokens
        or not _takes(k_cache, v_cache, q.dtype, kv_scales)
    ):
        raise ValueError(
            f"q {q.dtype} {list(q.shape)}, k_cache {k_cache.dtype} {list(k_cache.shape)}, v_cache {v_cache.dtype} "
            f"{list(v_cache.shape)} and {slots.shape[0]} slots do not fit each other"
        )
    if (window is not None and window < 1) or (softcap is not None and softcap <= 0):
        raise ValueError(f"window {window} and softcap {softcap} must be above 0")
    is_fp8 = k_cache.dtype is FP8
    on_gpu = (
        on_kernels(q)
        and same_gpu(q, k_cache, v_cache, slots)
        and head_dim <= MAX_HEAD_DIM
        and scale > 0
        and not (is_fp8 and (q.dtype is torch.float32 or not serves_fp8(q.device, head_dim, block_size)))
    )
    on_cpu = on_core(q) and k_cache.is_cpu and v_cache.is_cpu and slots.is_cpu and not is_fp8
    if not (on_gpu or on_cpu):
        check_one_device(q=q, k_cache=k_cache, v_cache=v_cache, batch=slots)
        return paged_attention_reference(q, k_cache, v_cache, batch, scale, kv_scales, window=window, softcap=softcap)
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError("k_cache and v_cache must be contiguous")
    if on_gpu:
        key = (q.dtype, num_heads, k_cache.dtype, k_cache.shape, min(window or 0, _MOST_WINDOW))
        step = batch.planned.get(key)
        if step is None:
            step = batch.planned[key] = StepAttention(batch, *key)
        return step.attend(q, k_cache, v_cache, scale, kv_scales, softcap or 0.0)
    token_stride, head_stride, element_stride = q.stride()
    if element_stride != 1:
        q = q.contiguous()
        token_stride, head_stride, _ = q.stride()
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    _core.paged_attention(
        q.dtype is torch.bfloat16,
        q.data_ptr(),
        token_stride,
        head_stride,
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        out.data_ptr(),
        num_tokens,
        num_heads,
        num_kv_heads,
        head_dim,
        num_blocks,
        block_size,
        *batch.core_arguments,
        scale,
        window or 0,
        softcap or 0.0,
    )
    return out


def _takes(k_cache: Tensor, v_cache: Tensor, dtype: torch.dtype, kv_scales: KvScales) -> bool:
    """Whether the caches may hold heads of `dtype`, with these scales."""
    if k_cache.dtype is not v_cache.dtype:
        return False
    return min(kv_scales) > 0 if k_cache.dtype is FP8 else k_cache.dtype is dtype and kv_scales == UNSCALED


def write_kv(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, kv_scales: KvScales = UNSCALED
) -> None:
    """Writes k, v [T, G, D] into k_cache, v_cache [N, G, S, D] at `slots` int64 [T] (block * S + offset).

    Caches of float8_e4m3fn get the nearest numbers to k and v divided by `kv_scales`, at most 448 of either sign.
    Raises ValueError on shapes or devices that do not fit each other, IndexError (before any write) on a slot outside
    the cache; on a GPU such a token is not written.
    """
    num_blocks, num_kv_heads, block_size, head_dim = k_cache.shape
    shape = k.shape
    num_tokens = shape[0]
    if (
        shape != (num_tokens, num_kv_heads, head_dim)
        or v.shape != shape
        or v_cache.shape != k_cache.shape
        or slots.shape != (num_tokens,)
        or k.dtype is not v.dtype
        or not _takes(k_cache, v_cache, k.dtype, kv_scales)
    ):
        raise ValueError(
            f"k {k.dtype} {list(k.shape)}, v {v.dtype} {list(v.shape)}, k_cache {k_cache.dtype} {list(k_cache.shape)}, "
            f"v_cache {v_cache.dtype} {list(v_cache.shape)} and slots {list(slots.shape)} do not fit each other"
        )
    is_fp8 = k_cache.dtype is FP8
    on_gpu = (
        on_kernels(k) and same_gpu(k, v, k_cache, v_cache, slots) and head_dim % 2 == 0 and head_dim <= MAX_HEAD_DIM
    )
    on_cpu = on_core(k) and v.is_cpu and k_cache.is_cpu and v_cache.is_cpu and slots.is_cpu
    if (is_fp8 and (on_cpu or k.dtype is torch.float32)) or not (on_gpu or on_cpu):
        check_one_device(k=k, v=v, k_cache=k_cache, v_cache=v_cache, slots=slots)
        write_kv_reference(k, v, k_cache, v_cache, slots, kv_scales)
        return
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError("k_cache and v_cache must be contiguous")
    if k.stride(2) != 1 or v.stride(2) != 1:
        k, v = k.contiguous(), v.contiguous()
    k_token_stride, k_head_stride, _ = k.stride()
    v_token_stride, v_head_stride, _ = v.stride()
    if slots.dtype is not torch.int64 or not slots.is_contiguous():
        slots = slots.to(torch.int64).contiguous()
    if on_gpu:
        _kernels.place_heads(
            KERNEL_DTYPES[k.dtype], CACHE_DTYPES[k_cache.dtype], 0, 0, 0, k.data_ptr(), k_token_stride, k_head_stride,
            v.data_ptr(), v_token_stride, v_head_stride, 0, 0, 0.0, 0, 0, 0, k_cache.data_ptr(), v_cache.data_ptr(),
            *kv_scales, slots.data_ptr(), num_blocks * block_size, block_size, num_tokens, 0, num_kv_heads, head_dim,
            stream_of(k),
        )  # fmt: skip
        return
    _core.write_kv(
        k.dtype is torch.bfloat16,
        k.data_ptr(),
        k_token_stride,
        k_head_stride,
        v.data_ptr(),
        v_token_stride,
        v_head_stride,
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        num_tokens,
        num_kv_heads,
        head_dim,
        num_blocks,
        block_size,
        slots.data_ptr(),
    )


def paged_attention_reference(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, scale: float, kv_scales: KvScales = UNSCALED,
    *, window: int | None = None, softcap: float | None = None,
) -> Tensor:  # fmt: skip
    """The twin of `paged_attention`: one softmax over the gathered keys of each sequence, in float32 or wider."""
    _, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = k_cache.shape
    wide = wide_dtype(q)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    starts = batch.query_starts.tolist()
    for b, context_len in enumerate(batch.context_lens.tolist()):
        begin, end = starts[b], starts[b + 1]
        if begin == end or context_len == 0:  # padding
            continue
        blocks = batch.block_tables[b, : -(-context_len // block_size)].long()

        def gather(cache: Tensor, kv_scale: float, blocks: Tensor = blocks, context_len: int = context_len) -> Tensor:
            # index_select knows no float8.
            pages = cache.view(torch.uint8)[blocks].view(cache.dtype) if cache.dtype is FP8 else cache[blocks]
            pages = pages.transpose(1, 2)  # [blocks, S, G, D]
            keys = pages.reshape(-1, num_kv_heads, head_dim)[:context_len].to(wide) * kv_scale
            return keys.repeat_interleave(num_heads // num_kv_heads, dim=1)  # [context, H, D]

        positions = torch.arange(context_len - (end - begin), context_len, device=q.device)
        distances = positions[:, None] - torch.arange(context_len, device=q.device)[None, :]
        hidden = (distances < 0) if window is None else (distances < 0) | (distances >= window)
        scores = torch.einsum("qhd,khd->hqk", q[begin:end].to(wide), gather(k_cache, kv_scales[0])) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        out[begin:end] = torch.einsum("hqk,khd->qhd", scores, gather(v_cache, kv_scales[1])).to(q.dtype)
    return out


def write_kv_reference(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, kv_scales: KvScales = UNSCALED
) -> None:
    """The twin of `write_kv`: on a CPU an IndexError, too, for a slot outside the cache."""
    num_blocks, _, block_size, _ = k_cache.shape
    present = (slots >= 0) & (slots < num_blocks * block_size)
    if slots.is_cpu and not present.all():
        raise IndexError(f"slot {int(slots[~present][0])} is not one of {num_blocks * block_size}")
    if slots.is_cuda:
        k, v, slots = k[present], v[present], slots[present]
    blocks = torch.div(slots, block_size, rounding_mode="floor")
    offsets = slots - blocks * block_size
    for heads, cache, kv_scale in ((k, k_cache, kv_scales[0]), (v, v_cache, kv_scales[1])):
        if cache.dtype is FP8:
            limit = torch.finfo(FP8).max
            heads = (heads.to(wide_dtype(heads)) / kv_scale).clamp(-limit, limit).to(FP8).view(torch.uint8)
            cache = cache.view(torch.uint8)
        cache[blocks, :, offsets] = heads
