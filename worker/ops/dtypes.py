"""Which tensors the kernels of `worker._core` and `worker._kernels` take; all others go to the PyTorch twins."""

from __future__ import annotations

import importlib

import torch
from torch import Tensor


def _problem_of(extension: str) -> str | None:
    """Why `extension` cannot be imported: empty if it can, None if it was not built."""
    try:
        importlib.import_module(extension)
    except ModuleNotFoundError as error:
        return None if error.name == extension else str(error)
    except ImportError as error:
        return str(error)
    return ""


_FOUND = _problem_of(f"{__package__.rpartition('.')[0]}._kernels")
# Whether the CUDA extension was built and loads.
KERNELS_BUILT = _FOUND == ""
# Why one that was built does not load. A worker on a CPU does without; one on a GPU would be slow without a word.
KERNELS_PROBLEM = _FOUND or ""

# As cpp/cuda/dtype.h numbers them.
KERNEL_DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
# The longest heads that all kernels take, and so the longest that a model may have.
MAX_HEAD_DIM = 256
# What a KV cache may hold: the dtype of the heads, or this, whose numbers are multiplied by a scale.
FP8 = torch.float8_e4m3fn
CACHE_DTYPES = {**KERNEL_DTYPES, FP8: 3}


def on_core(x: Tensor) -> bool:
    """Whether x is on the CPU and of a dtype the C++ kernels have. The other tensors of a call must be there too."""
    return (x.dtype is torch.bfloat16 or x.dtype is torch.float32) and x.is_cpu


def on_kernels(x: Tensor) -> bool:
    """Whether x is on a GPU and of a dtype the CUDA kernels have. `same_gpu` asks for the others of a call."""
    return KERNELS_BUILT and x.is_cuda and x.dtype in KERNEL_DTYPES


def same_gpu(x: Tensor, *others: Tensor | None) -> bool:
    """Whether all are where x is, which is on a GPU. None counts as nowhere."""
    device = x.get_device()
    for other in others:  # noqa: SIM110 - the generator of `all` costs more than the rest
        if other is not None and other.get_device() != device:
            return False
    return True


def stream_of(x: Tensor) -> int:
    """The current stream of the GPU that x is on; that GPU becomes the thread's current one, where kernels go."""
    device = x.get_device()
    if torch.cuda.current_device() != device:
        torch.cuda.set_device(device)
    return torch._C._cuda_getCurrentRawStream(device)


def check_one_device(**tensors: Tensor | None) -> None:
    """Raises ValueError, naming each tensor's device, unless all are on one. None counts as nowhere."""
    devices = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
    if len(set(devices.values())) > 1:
        places = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise ValueError(f"tensors must be on one device: {places}")


def wide_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which the twins compute on x: float32, or float64 for float64."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
