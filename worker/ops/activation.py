"""SiLU of the gate times the up projection. Knows no layers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .. import _core
from .dtypes import on_core, wide_dtype


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2I], gate first -> silu(gate) * up [T, I], computed in float32 and rounded once.

    Raises ValueError on another shape.
    """
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up must be [T, 2I], is {list(gate_up.shape)}")
    if not on_core(gate_up):
        return silu_mul_reference(gate_up)
    if gate_up.stride(1) != 1:
        gate_up = gate_up.contiguous()
    num_rows, width = gate_up.shape
    out = torch.empty((num_rows, width // 2), dtype=gate_up.dtype)
    _core.silu_mul(
        gate_up.dtype is torch.bfloat16, gate_up.data_ptr(), gate_up.stride(0), out.data_ptr(), num_rows, width // 2
    )
    return out


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """The twin of `silu_mul`, in float32 or wider."""
    gate, up = gate_up.to(wide_dtype(gate_up)).chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(gate_up.dtype)
