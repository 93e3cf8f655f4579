"""Rotary position embedding, in place. Knows no scaling rules: it reads a table."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _core
from .dtypes import (
    KERNEL_DTYPES,
    KERNELS_BUILT,
    MAX_HEAD_DIM,
    check_one_device,
    on_core,
    on_kernels,
    same_gpu,
    stream_of,
    wide_dtype,
)

if KERNELS_BUILT:
    from .. import _kernels


def apply_rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """Rotates q [T, H, D] and k [T, G, D] in place; both may be views of a fused row [T, (H + 2G) * D].

    positions int64 [T] index the rows of cos_sin [P, D] float32 (cosines first, then sines). Element d pairs with
    element d + D/2 ("rotate half"). Raises ValueError on shapes, dtypes or devices that do not fit each other,
    IndexError (before any write) on a position outside the table; on a GPU such a token is left as it is.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    num_positions, *table_dims = cos_sin.shape
    if (
        k.shape != (num_tokens, num_kv_heads, head_dim)
        or positions.shape != (num_tokens,)
        or table_dims != [head_dim]
        or head_dim % 2
        or k.dtype is not q.dtype
    ):
        raise ValueError(
            f"q {q.dtype} {list(q.shape)}, k {k.dtype} {list(k.shape)}, positions {list(positions.shape)} and cos_sin "
            f"{list(cos_sin.shape)} do not fit each other"
        )
    q_token_stride, q_head_stride, q_stride = q.stride()
    k_token_stride, k_head_stride, k_stride = k.stride()
    on_gpu = on_kernels(q) and same_gpu(q, k, positions, cos_sin) and head_dim <= MAX_HEAD_DIM
    on_cpu = on_core(q) and k.is_cpu and positions.is_cpu and cos_sin.is_cpu
    # In place, so a layout that the kernel cannot take is the twin's rather than a copy's.
    if not (on_gpu or on_cpu) or not q_stride == k_stride == 1 or cos_sin.dtype is not torch.float32:
        check_one_device(q=q, k=k, positions=positions, cos_sin=cos_sin)
        apply_rope_reference(q, k, positions, cos_sin)
        return
    if positions.dtype is not torch.int64 or not positions.is_contiguous():
        positions = positions.to(torch.int64).contiguous()
    if not cos_sin.is_contiguous():
        cos_sin = cos_sin.contiguous()
    if on_gpu:
        _kernels.place_heads(
            KERNEL_DTYPES[q.dtype], KERNEL_DTYPES[q.dtype], q.data_ptr(), q_token_stride, q_head_stride, k.data_ptr(),
            k_token_stride, k_head_stride, 0, 0, 0, 0, 0, 0.0, positions.data_ptr(), cos_sin.data_ptr(), num_positions,
            0, 0, 1.0, 1.0, 0, 0, 1, num_tokens, num_heads, num_kv_heads, head_dim, stream_of(q),
        )  # fmt: skip
        return
    _core.apply_rope(
        q.dtype is torch.bfloat16,
        q.data_ptr(),
        q_token_stride,
        q_head_stride,
        num_heads,
        k.data_ptr(),
        k_token_stride,
        k_head_stride,
        num_kv_heads,
        num_tokens,
        head_dim,
        positions.data_ptr(),
        cos_sin.data_ptr(),
        num_positions,
    )


def apply_rope_reference(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """The twin of `apply_rope`, in float32 or wider."""
    wide = wide_dtype(q)
    cos, sin = cos_sin[positions].to(wide)[:, None, :].chunk(2, dim=-1)  # [T, 1, D/2]
    for x in (q, k):
        low, high = x.to(wide).chunk(2, dim=-1)
        x.copy_(torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1))
