"""Matrix products in 8-bit floating point, twice the numbers for the same bytes. Knows no layers, no models."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .activation import Activation
from .dtypes import FP8, check_one_device
from .quantize import QuantizedRows, RawProduct, gate_mul_quantized, quantize_rows, rescaled

# The library takes products whose sides but for the number of rows are multiples of this.
SIDE_MULTIPLE = 16
# Rows up to which it is faster to multiply without the scales, which the library applies at a loss (docs/results.md).
MAX_RAW_ROWS = 256


class Fp8Linear:
    """y = x W^T + b with a scale for each row of W and of x, sums in float32, y in bfloat16.

    Keeps a quantized copy of W and takes x as it is or quantized already. With up to MAX_RAW_ROWS rows sums are rounded
    to bfloat16 before they are scaled, too. A row of y may depend in its last bits on the number of rows.
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
        self._one = torch.ones((), dtype=torch.float32, device=weight.device)

    def __call__(self, x: Tensor | QuantizedRows) -> Tensor:
        """x [T, K], bfloat16 or quantized -> [T, N_out]. Raises ValueError on another shape, dtype or device."""
        product = self._multiply(x)
        out = product if isinstance(product, Tensor) else rescaled(product)
        return out[:, : self.out_features] if out.shape[1] > self.out_features else out

    def gated(self, x: Tensor | QuantizedRows, activation: Activation = "silu") -> QuantizedRows:
        """x [T, K] -> activation(the first half of the outputs) * the second, [T, N_out / 2], quantized.

        Raises ValueError as a call does, or if N_out is odd.
        """
        is_padded = self._weight.shape[1] > self.out_features
        return gate_mul_quantized(self(x) if is_padded else self._multiply(x), activation)

    def _multiply(self, x: Tensor | QuantizedRows) -> Tensor | RawProduct:
        """[T, N_out, padded], with few rows before it is scaled."""
        if isinstance(x, Tensor):
            if x.dtype is not torch.bfloat16:
                raise ValueError(f"x must be bfloat16, is {x.dtype}")
            x = quantize_rows(x)
        values, scales = x.values, x.scales
        if values.shape[1] != self.in_features:
            raise ValueError(f"x must be [T, {self.in_features}], is {list(values.shape)}")
        if values.device != self._weight.device:
            check_one_device(x=values, weight=self._weight)
        num_rows, num_outputs = len(values), self._weight.shape[1]
        if num_rows == 0:
            return scales.new_empty(0, num_outputs, dtype=torch.bfloat16)
        if self._num_padding:
            # As bytes, since not every type can be padded; those of zero are zero.
            values = functional.pad(values.view(torch.uint8), (0, self._num_padding)).view(FP8)
        if num_rows > MAX_RAW_ROWS:
            return torch._scaled_mm(
                values, self._weight, scales, self._scales, bias=self._bias, out_dtype=torch.bfloat16
            )
        sums = torch._scaled_mm(values, self._weight, self._one, self._one, out_dtype=torch.bfloat16)
        return RawProduct(sums, scales, self._scales, self._bias)


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
