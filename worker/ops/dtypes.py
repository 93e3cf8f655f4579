"""Which tensors the kernels of `worker._core` take; all others go to the PyTorch twins."""

from __future__ import annotations

import torch
from torch import Tensor


def on_core(x: Tensor) -> bool:
    """Whether x is on the CPU and of a dtype the C++ kernels have."""
    return (x.dtype is torch.bfloat16 or x.dtype is torch.float32) and x.is_cpu


def wide_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which the twins compute on x: float32, or float64 for float64."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
