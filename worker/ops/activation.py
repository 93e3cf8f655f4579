"""SiLU of the gate times the up projection. Knows no layers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2I], gate first -> silu(gate) * up [T, I], computed in float32 and rounded once."""
    return silu_mul_reference(gate_up)


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """The twin of `silu_mul`, in float32 or wider."""
    gate, up = gate_up.to(torch.float64 if gate_up.dtype == torch.float64 else torch.float32).chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(gate_up.dtype)
