"""RMSNorm, alone or after a residual sum. Knows no layers."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """x [..., D] normalised over D, times weight [D]; rows may be strided, the last dimension may not.

    With `residual` (x's shape): residual += x in place first, and the sum is what is normalised.
    Sums are in float32; a row's result depends on that row alone.
    """
    return rms_norm_reference(x, weight, eps, residual)


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """The twin of `rms_norm`, in float32 or wider."""
    if residual is not None:
        residual.add_(x)
        x = residual
    wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (normed * weight.to(wide.dtype)).to(x.dtype)
