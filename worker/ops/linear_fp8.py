"""Matrix products in 8-bit floating point, twice the numbers for the same bytes. Knows no layers, no models."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .dtypes import FP8, check_one_device
from .quantize import QuantizedRows, quantize_rows, silu_mul_quantized

# The library takes products whose sides but for the number of rows are multiples of this.
SIDE_MULTIPLE = 16


class Fp8Linear:
    """y = x W^T + b with a scale for each row of W and of x, sums in float32, y in bfloat16.

    Keeps a quantized copy of W and takes x as it is or quantized already. Any row's y may depend in its last bit on the
    number of rows.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight [N_out, K] and bias [N_out], bfloat16 on one device. Raises ValueError otherwise."""
        check_one_device(weight=weight, bias=bias)
        if weight.dim() != 2 or 0 in weight.shape or weight.dtype is not torch.bfloat16:
            raise ValueError(
                f"weight must be bfloat16 [N_out, K] and not empty, is {weight.dtype} {list(weight.shape)}"
            )
        self.out_features, self.in_features = weight.shape
        if bias is not None and (bias.shape != (self.out_features,) or bias.dtype is not weight.dtype):
            raise ValueError(f"bias must be bfloat16 [{self.out_features}], is {bias.dtype} {list(bias.shape)}")
        self._num_padding = -self.in_features % SIDE_MULTIPLE
        missing = -self.out_features % SIDE_MULTIPLE
        if self._num_padding or missing:
            weight = functional.pad(weight, (0, self._num_padding, 0, missing))
            bias = None if bias is None else functional.pad(bias, (0, missing))
        quantized = quantize_rows(weight)
        self._weight = quantized.values.t()  # [K, N_out], column by column
        self._scales = quantized.scales.t()  # [1, N_out]
        self._bias = bias

    def __call__(self, x: Tensor | QuantizedRows) -> Tensor:
        """x [T, K], bfloat16 or quantized -> [T, N_out]. Raises ValueError on another shape, dtype or device."""
        if isinstance(x, Tensor):
            if x.dtype is not torch.bfloat16:
                raise ValueError(f"x must be bfloat16, is {x.dtype}")
            x = quantize_rows(x)
        values, scales = x.values, x.scales
        if values.shape[1] != self.in_features:
            raise ValueError(f"x must be [T, {self.in_features}], is {list(values.shape)}")
        if values.device != self._weight.device:
            check_one_device(x=values, weight=self._weight)
        if not len(values):
            return scales.new_empty(0, self.out_features, dtype=torch.bfloat16)
        if self._num_padding:
            # As bytes, since not every type can be padded; those of zero are zero.
            values = functional.pad(values.view(torch.uint8), (0, self._num_padding)).view(FP8)
        out = torch._scaled_mm(values, self._weight, scales, self._scales, bias=self._bias, out_dtype=torch.bfloat16)
        return out[:, : self.out_features] if out.shape[1] > self.out_features else out

    def gated(self, x: Tensor | QuantizedRows) -> QuantizedRows:
        """x [T, K] -> silu(the first half of the outputs) * the second, [T, N_out / 2], quantized.

        Raises ValueError as a call does, or if N_out is odd.
        """
        return silu_mul_quantized(self(x))


def fp8_linear_reference(x: Tensor | QuantizedRows, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The twin of `Fp8Linear`: the same rounding of x and weight, sums in float32, rounded to bfloat16 once."""
    rows = quantize_rows(x) if isinstance(x, Tensor) else x
    wide = rows.widened() @ quantize_rows(weight).widened().t()
    return (wide if bias is None else wide + bias.float()).to(torch.bfloat16)


def fp8_problem(device: torch.device) -> str | None:
    """Why `device` does not compute such products, found by computing one; None if it does."""
    ones = torch.ones(1, 64, dtype=torch.bfloat16, device=device)
    try:
        product = Fp8Linear(ones.expand(32, 64))(ones)
        right = bool((product == 64).all())
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return str(error).partition("\n")[0]
    return None if right else f"torch {torch.__version__} computes a wrong product"
