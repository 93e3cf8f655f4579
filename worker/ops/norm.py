"""RMSNorm, alone or after a residual sum. Knows no layers."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _core
from .dtypes import KERNEL_DTYPES, KERNELS_BUILT, check_one_device, on_core, on_kernels, same_gpu, stream_of, wide_dtype

if KERNELS_BUILT:
    from .. import _kernels


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """x [..., D] normalised over D, times weight [D]; rows may be strided, the last dimension may not.

    With `residual` (x's shape): residual += x in place first, and the sum is what is normalised.
    Sums are in float32; a row's result depends on that row alone. Raises ValueError on shapes, dtypes or devices that
    do not fit each other.
    """
    shape, dtype = x.shape, x.dtype
    if (
        weight.shape != shape[-1:]
        or weight.dtype is not dtype
        or (residual is not None and (residual.shape != shape or residual.dtype is not dtype))
    ):
        raise ValueError(
            f"x {dtype} {list(shape)}, weight {weight.dtype} {list(weight.shape)} and residual "
            f"{residual if residual is None else (residual.dtype, list(residual.shape))} do not fit each other"
        )
    on_gpu = on_kernels(x) and same_gpu(x, weight, residual)
    on_cpu = on_core(x) and weight.is_cpu and (residual is None or residual.is_cpu)
    if not (on_gpu or on_cpu) or not 1 <= len(shape) <= 3 or (residual is not None and residual.stride(-1) != 1):
        check_one_device(x=x, weight=weight, residual=residual)
        return rms_norm_reference(x, weight, eps, residual)
    if x.stride(-1) != 1:
        x = x.contiguous()
    if not weight.is_contiguous():
        weight = weight.contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    # Rows lie in up to two dimensions: num_outer times num_inner.
    num_outer, num_inner = shape[0] if len(shape) > 1 else 1, shape[1] if len(shape) == 3 else 1
    outer_of_x, inner_of_x = _row_strides(x)
    outer_of_residual, inner_of_residual = (0, 0) if residual is None else _row_strides(residual)
    if on_gpu:
        _kernels.rms_norm(
            KERNEL_DTYPES[dtype], x.data_ptr(), outer_of_x, inner_of_x, 0 if residual is None else residual.data_ptr(),
            outer_of_residual, inner_of_residual, weight.data_ptr(), out.data_ptr(), num_outer, num_inner, shape[-1],
            eps, stream_of(x),
        )  # fmt: skip
        return out
    _core.rms_norm(
        dtype is torch.bfloat16,
        x.data_ptr(),
        outer_of_x,
        inner_of_x,
        0 if residual is None else residual.data_ptr(),
        outer_of_residual,
        inner_of_residual,
        weight.data_ptr(),
        out.data_ptr(),
        num_outer,
        num_inner,
        shape[-1],
        eps,
    )
    return out


def _row_strides(x: Tensor) -> tuple[int, int]:
    strides = x.stride()
    return strides[0], strides[1] if len(strides) == 3 else 0


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """The twin of `rms_norm`, in float32 or wider."""
    if residual is not None:
        residual.add_(x)
        x = residual
    wide = x.to(wide_dtype(x))
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (normed * weight.to(wide.dtype)).to(x.dtype)
