"""Matrix products with weights that stay. Knows no layers, no models."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .. import _core
from .activation import Activation, gate_mul
from .dtypes import check_one_device
from .linear_skinny import MAX_ROWS, SkinnyLinear, takes_weight

# What a GPU multiplies with sums in float32 anyway: they only have to be kept.
_SUMMED_IN_FLOAT32 = (torch.bfloat16, torch.float16)


def linear_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """The twin of `Linear`: x [T, K], weight [N_out, K], bias [N_out] -> [T, N_out].

    `out_dtype` wider than the weights' keeps the precision of the sums (logits).
    """
    out_dtype = out_dtype or x.dtype
    if out_dtype == x.dtype:
        return functional.linear(x, weight, bias)
    wide = functional.linear(x.to(out_dtype), weight.to(out_dtype))
    return wide if bias is None else wide + bias.to(out_dtype)


class Linear:
    """y = x W^T + b for one weight: its own copy on the CPU, elsewhere the tensors themselves, which must not change.

    On the CPU in bfloat16 or float32 an output element depends on its row of x alone: bitwise the same for every T
    and every number of threads. On a Hopper GPU in bfloat16 or float16 it does so among all T up to 16. Elsewhere
    PyTorch computes it, and the order of additions may depend on T.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight [N_out, K], bias [N_out] of the same dtype and device. Raises ValueError otherwise.

        On a GPU it waits for the current stream.
        """
        check_one_device(weight=weight, bias=bias)
        if weight.dim() != 2 or 0 in weight.shape:
            raise ValueError(f"weight must be [N_out, K] and not empty, is {list(weight.shape)}")
        self.out_features, self.in_features = weight.shape
        if bias is not None and (bias.shape != (self.out_features,) or bias.dtype != weight.dtype):
            raise ValueError(f"bias must be {weight.dtype} [{self.out_features}], is {bias.dtype} {list(bias.shape)}")
        self.dtype = weight.dtype
        self._is_bf16 = weight.dtype == torch.bfloat16
        # The kernel takes bfloat16 in pairs.
        self._num_padding = self.in_features % 2 if self._is_bf16 else 0
        self._packed: _core.PackedWeight | None = None
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        if weight.device.type == "cpu" and weight.dtype in (torch.bfloat16, torch.float32):
            weight = functional.pad(weight, (0, self._num_padding)) if self._num_padding else weight
            weight = weight if weight.stride(1) == 1 else weight.contiguous()
            bias = None if bias is None else bias.contiguous()
            self._packed = _core.PackedWeight(
                weight=weight.data_ptr(),
                is_bf16=self._is_bf16,
                num_outputs=self.out_features,
                depth=self.in_features + self._num_padding,
                row_stride=weight.stride(0),
                bias=0 if bias is None else bias.data_ptr(),
            )
        else:
            self._weight = weight
            self._bias = bias
        self._skinny = SkinnyLinear(weight, bias) if takes_weight(weight, bias) else None

    def __call__(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        """x [T, K] -> [T, N_out] of `out_dtype`: x's, which is the default, or float32.

        Raises ValueError on another shape or dtype, or if x is not on the weight's device.
        """
        self._check_input(x)
        if self._skinny is not None and len(x) <= MAX_ROWS and out_dtype in (None, self.dtype, torch.float32):
            return self._skinny.multiply(x, out_dtype or self.dtype, gated=False)
        if self._packed is None:
            assert self._weight is not None
            if x.is_cuda and out_dtype is torch.float32 and x.dtype in _SUMMED_IN_FLOAT32:
                # The twin would turn the whole weight into float32 first.
                wide = torch.mm(x, self._weight.t(), out_dtype=torch.float32)
                return wide if self._bias is None else wide.add_(self._bias)
            return linear_reference(x, self._weight, self._bias, out_dtype)
        if out_dtype is None:
            out_dtype = self.dtype
        elif out_dtype is not self.dtype and out_dtype is not torch.float32:
            raise ValueError(f"out_dtype must be {self.dtype} or torch.float32, is {out_dtype}")
        if self._num_padding:
            x = functional.pad(x, (0, self._num_padding))
        row_stride, element_stride = x.stride()
        if element_stride != 1:
            x = x.contiguous()
            row_stride = x.stride(0)
        num_rows = len(x)
        out = x.new_empty(num_rows, self.out_features, dtype=out_dtype)
        self._packed.linear(x.data_ptr(), row_stride, num_rows, out.data_ptr(), out_dtype is torch.bfloat16)
        return out

    def gated(self, x: Tensor, activation: Activation = "silu") -> Tensor:
        """x [T, K] -> activation(the first half of the outputs) * the second, [T, N_out / 2] of x's dtype.

        Where one kernel does both, the outputs are not rounded before. Raises ValueError as a call does, or if N_out
        is odd.
        """
        self._check_input(x)
        if self._skinny is not None and len(x) <= MAX_ROWS and self.out_features % 2 == 0 and activation == "silu":
            return self._skinny.multiply(x, self.dtype, gated=True)
        return gate_mul(self(x), activation)

    def _check_input(self, x: Tensor) -> None:
        if x.dim() != 2 or x.shape[1] != self.in_features or x.dtype is not self.dtype:
            raise ValueError(f"x must be {self.dtype} [T, {self.in_features}], is {x.dtype} {list(x.shape)}")
        if self._weight is not None:
            if x.device != self._weight.device:
                check_one_device(x=x, weight=self._weight)
        elif not x.is_cpu:
            raise ValueError(f"x must be on the CPU, where the weight is, is on {x.device}")
