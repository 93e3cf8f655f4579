"""Which tensors the kernels of `worker._core` take; all others go to the PyTorch twins."""

from __future__ import annotations

import torch
from torch import Tensor


def on_core(x: Tensor) -> bool:
    """Whether x is on the CPU and of a dtype the C++ kernels have. The other tensors of a call must be there too."""
    return (x.dtype is torch.bfloat16 or x.dtype is torch.float32) and x.is_cpu


def check_one_device(**tensors: Tensor | None) -> None:
    """Raises ValueError, naming each tensor's device, unless all are on one. None counts as nowhere."""
    devices = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
    if len(set(devices.values())) > 1:
        places = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise ValueError(f"tensors must be on one device: {places}")


def wide_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which the twins compute on x: float32, or float64 for float64."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
