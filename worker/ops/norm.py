"""RMSNorm, alone or after a residual sum. Knows no layers."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _core
from .dtypes import on_core, wide_dtype


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """x [..., D] normalised over D, times weight [D]; rows may be strided, the last dimension may not.

    With `residual` (x's shape): residual += x in place first, and the sum is what is normalised.
    Sums are in float32; a row's result depends on that row alone. Raises ValueError on shapes or dtypes that do not
    fit each other.
    """
    dim = x.shape[-1]
    if (
        weight.shape != (dim,)
        or weight.dtype != x.dtype
        or (residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype))
    ):
        raise ValueError(
            f"x {x.dtype} {list(x.shape)}, weight {weight.dtype} {list(weight.shape)} and residual "
            f"{residual if residual is None else (residual.dtype, list(residual.shape))} do not fit each other"
        )
    if not on_core(x) or x.dim() > 3 or not (residual is None or residual.stride(-1) == 1):
        return rms_norm_reference(x, weight, eps, residual)
    if x.stride(-1) != 1:
        x = x.contiguous()
    if not weight.is_contiguous():
        weight = weight.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    num_outer, inner_of_x, num_inner = x.shape[0] if x.dim() > 1 else 1, 0, 1
    outer_of_x = x.stride(0)
    inner_of_residual = outer_of_residual = 0
    if residual is not None:
        outer_of_residual = residual.stride(0)
    if x.dim() == 3:
        num_inner, inner_of_x = x.shape[1], x.stride(1)
        inner_of_residual = 0 if residual is None else residual.stride(1)
    _core.rms_norm(
        x.dtype is torch.bfloat16,
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
        dim,
        eps,
    )
    return out


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """The twin of `rms_norm`, in float32 or wider."""
    if residual is not None:
        residual.add_(x)
        x = residual
    wide = x.to(wide_dtype(x))
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (normed * weight.to(wide.dtype)).to(x.dtype)
