"""An activation of the gate times the up projection. Knows no layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from .. import _core
from .dtypes import KERNEL_DTYPES, KERNELS_BUILT, on_core, on_kernels, stream_of, wide_dtype

if KERNELS_BUILT:
    from .. import _kernels

# gelu_tanh: the approximation of GELU by tanh, which is what models were trained with that say gelu_pytorch_tanh.
Activation = Literal["silu", "gelu_tanh"]

# As cpp/include/tercet/activation.h and cpp/cuda/activation.h number them.
_GATES: Mapping[Activation, int] = {"silu": 0, "gelu_tanh": 1}


def gate_mul(gate_up: Tensor, activation: Activation = "silu") -> Tensor:
    """gate_up [T, 2I], gate first -> activation(gate) * up [T, I], computed in float32 and rounded once.

    Raises ValueError on another shape.
    """
    shape = gate_up.shape
    if len(shape) != 2 or shape[1] % 2:
        raise ValueError(f"gate_up must be [T, 2I], is {list(shape)}")
    on_gpu = on_kernels(gate_up)
    if not (on_gpu or on_core(gate_up)):
        return gate_mul_reference(gate_up, activation)
    row_stride, element_stride = gate_up.stride()
    if element_stride != 1:
        gate_up = gate_up.contiguous()
        row_stride = shape[1]
    num_rows, dim = shape[0], shape[1] // 2
    out = gate_up.new_empty(num_rows, dim)
    gate = _GATES[activation]
    if on_gpu:
        dtype, stream = KERNEL_DTYPES[gate_up.dtype], stream_of(gate_up)
        _kernels.gate_mul(dtype, gate, gate_up.data_ptr(), row_stride, out.data_ptr(), num_rows, dim, stream)
        return out
    _core.gate_mul(gate_up.dtype is torch.bfloat16, gate, gate_up.data_ptr(), row_stride, out.data_ptr(), num_rows, dim)
    return out


def gate_mul_reference(gate_up: Tensor, activation: Activation = "silu") -> Tensor:
    """The twin of `gate_mul`, in float32 or wider."""
    gate, up = gate_up.to(wide_dtype(gate_up)).chunk(2, dim=-1)
    return (_REFERENCES[activation](gate) * up).to(gate_up.dtype)


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


_REFERENCES: Mapping[Activation, Callable[[Tensor], Tensor]] = {"silu": functional.silu, "gelu_tanh": _gelu_tanh}
