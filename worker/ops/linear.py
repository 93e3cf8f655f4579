"""Matrix products with weights packed once. Knows no layers, no models."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


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
    """y = x W^T + b for one weight. Holds its own copy of the weight; the caller may free the original.

    An output element depends on its row of x alone: bitwise the same for every T and every number of threads
    (CPU, bfloat16 and float32).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight [N_out, K], bias [N_out] of the same dtype and device. Raises ValueError on other shapes."""
        if weight.dim() != 2 or 0 in weight.shape:
            raise ValueError(f"weight must be [N_out, K] and not empty, is {list(weight.shape)}")
        self.out_features, self.in_features = weight.shape
        if bias is not None and (bias.shape != (self.out_features,) or bias.dtype != weight.dtype):
            raise ValueError(f"bias must be {weight.dtype} [{self.out_features}], is {bias.dtype} {list(bias.shape)}")
        self.dtype = weight.dtype
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        """x [T, K] -> [T, N_out] of `out_dtype` (x's, or float32). Raises ValueError on another shape or dtype."""
        if x.dim() != 2 or x.shape[1] != self.in_features or x.dtype != self.dtype:
            raise ValueError(f"x must be {self.dtype} [T, {self.in_features}], is {x.dtype} {list(x.shape)}")
        return linear_reference(x, self._weight, self._bias, out_dtype)
