"""What happens to a layer's heads between their projection and attention, in one call. Knows no layers.

Dim letters: T tokens, H query heads, G KV heads, D head size, N blocks, S slots per block, P positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .attention import UNSCALED, KvScales, write_kv
from .dtypes import CACHE_DTYPES, FP8, KERNEL_DTYPES, KERNELS_BUILT, MAX_HEAD_DIM, on_kernels, same_gpu, stream_of
from .norm import rms_norm
from .rope import apply_rope

if KERNELS_BUILT:
    from .. import _kernels


def place_heads(
    q: Tensor, k: Tensor, v: Tensor, norms: tuple[Tensor, Tensor] | None, eps: float, positions: Tensor,
    cos_sin: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, kv_scales: KvScales = UNSCALED,
) -> Tensor:  # fmt: skip
    """Norms and rotates q [T, H, D] and k [T, G, D], writes k and v [T, G, D] to their slots, returns q.

    norms, each [D], of q and k; None: they are not normed. The rest as for `apply_rope` and `write_kv`, their errors
    too. q and k may be overwritten: only what is returned and the caches are of use afterwards.
    """
    if not _fits_the_kernel(q, k, v, norms, positions, cos_sin, k_cache, v_cache, slots, kv_scales):
        if norms is not None:
            q = rms_norm(q, norms[0], eps)
            k = rms_norm(k, norms[1], eps)
        apply_rope(q, k, positions, cos_sin)
        write_kv(k, v, k_cache, v_cache, slots, kv_scales)
        return q
    num_tokens, num_heads, head_dim = q.shape
    num_blocks, num_kv_heads, block_size, _ = k_cache.shape
    q_token_stride, q_head_stride, _ = q.stride()
    k_token_stride, k_head_stride, _ = k.stride()
    v_token_stride, v_head_stride, _ = v.stride()
    q_norm, k_norm = (0, 0) if norms is None else (norms[0].data_ptr(), norms[1].data_ptr())
    _kernels.place_heads(
        KERNEL_DTYPES[q.dtype], CACHE_DTYPES[k_cache.dtype], q.data_ptr(), q_token_stride, q_head_stride, k.data_ptr(),
        k_token_stride, k_head_stride, v.data_ptr(), v_token_stride, v_head_stride, q_norm, k_norm, eps,
        positions.data_ptr(), cos_sin.data_ptr(), cos_sin.shape[0], k_cache.data_ptr(), v_cache.data_ptr(), *kv_scales,
        slots.data_ptr(), num_blocks * block_size, block_size, num_tokens, num_heads, num_kv_heads, head_dim,
        stream_of(q),
    )  # fmt: skip
    return q


def _fits_the_kernel(
    q: Tensor, k: Tensor, v: Tensor, norms: tuple[Tensor, Tensor] | None, positions: Tensor, cos_sin: Tensor,
    k_cache: Tensor, v_cache: Tensor, slots: Tensor, kv_scales: KvScales,
) -> bool:  # fmt: skip
    """Whether the fused kernel takes these. What does not is left to the separate operations, which say why."""
    if not (on_kernels(q) and same_gpu(q, k, v, positions, cos_sin, k_cache, v_cache, slots)):
        return False
    num_tokens, _, head_dim = q.shape
    dtype, of_kv, of_tokens, of_cache = q.dtype, k.shape, positions.shape, k_cache.shape
    if norms is not None:
        for norm in norms:
            if not (norm.dtype is dtype and norm.shape == (head_dim,) and norm.is_contiguous() and same_gpu(q, norm)):
                return False
    # Written out: this is asked once a layer, and a loop costs more than the kernel.
    return (
        len(of_tokens) == 1
        and of_tokens[0] == num_tokens
        and slots.shape == of_tokens
        and len(of_kv) == 3
        and of_kv[0] == num_tokens
        and of_kv[1] == of_cache[1]
        and of_kv[2] == head_dim == of_cache[3]
        and v.shape == of_kv
        and v_cache.shape == of_cache
        and cos_sin.dim() == 2
        and cos_sin.shape[1] == head_dim <= MAX_HEAD_DIM
        and head_dim % 2 == 0
        and k.dtype is dtype
        and v.dtype is dtype
        and v_cache.dtype is k_cache.dtype
        and (
            (k_cache.dtype is FP8 and dtype is not torch.float32 and min(kv_scales) > 0)
            if k_cache.dtype is not dtype
            else kv_scales == UNSCALED
        )
        and cos_sin.dtype is torch.float32
        and positions.dtype is torch.int64
        and slots.dtype is torch.int64
        and q.stride(2) == k.stride(2) == v.stride(2) == 1
        and positions.is_contiguous()
        and slots.is_contiguous()
        and cos_sin.is_contiguous()
        and k_cache.is_contiguous()
        and v_cache.is_contiguous()
    )
