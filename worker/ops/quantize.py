"""Rows in 8-bit floating point with a scale each: what a product of such numbers reads. Knows no weights, no layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .activation import Activation, gate_mul
from .dtypes import FP8, KERNELS_BUILT, on_kernels, same_gpu, stream_of
from .norm import rms_norm

if KERNELS_BUILT:
    from .. import _kernels

LARGEST = 448.0  # of float8_e4m3fn
# Below this a row counts as zeros, and its scale is no subnormal.
_SMALLEST = 1e-12
# The kernels move 16 bytes at once.
_VECTOR_BYTES = 16


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """x [T, K] as `values` float8_e4m3fn [T, K] times `scales` float32 [T, 1], each row's largest magnitude being 448.

    A row with an infinity or NaN has a NaN among its values.
    """

    values: Tensor
    scales: Tensor

    def widened(self) -> Tensor:
        """What the numbers stand for, in float32."""
        return self.values.float() * self.scales


@dataclass(frozen=True, slots=True)
class RawProduct:
    """Quantized rows times quantized weights before their scales: what they lack are a factor for each row and each
    output, and the bias. [T, N] bfloat16 `sums`, contiguous; float32 [T, 1] and [1, N]; bfloat16 [N] or None."""

    sums: Tensor
    of_rows: Tensor
    of_outputs: Tensor
    bias: Tensor | None


def rescaled(product: RawProduct) -> Tensor:
    """sums * of_rows * of_outputs + bias, [T, N] bfloat16, in place of the sums."""
    sums, bias = product.sums, product.bias
    num_rows, num_outputs = sums.shape
    if not _takes(product):
        return sums.copy_(rescaled_reference(product))
    _kernels.rescale(
        sums.data_ptr(), num_rows, num_outputs, product.of_rows.data_ptr(), product.of_outputs.data_ptr(),
        0 if bias is None else bias.data_ptr(), stream_of(sums),
    )  # fmt: skip
    return sums


def rescaled_reference(product: RawProduct) -> Tensor:
    """The twin of `rescaled`, in float32, rounded once. Leaves the sums as they are."""
    wide = product.sums.float() * product.of_rows * product.of_outputs
    return (wide if product.bias is None else wide + product.bias.float()).to(torch.bfloat16)


def quantize_rows(x: Tensor) -> QuantizedRows:
    """x [T, K], rounded to the nearest value of its row's scale. Raises ValueError on another shape."""
    num_rows, depth = _shape_of(x)
    if not _on_kernel(x, depth):
        return quantize_rows_reference(x)
    out = _empty(x, num_rows, depth)
    _kernels.quantize_rows(
        x.data_ptr(), x.stride(0), out.values.data_ptr(), out.scales.data_ptr(), num_rows, depth, stream_of(x)
    )
    return out


def quantize_rows_reference(x: Tensor) -> QuantizedRows:
    """The twin of `quantize_rows`, in float32."""
    largest = x.float().abs().amax(dim=1, keepdim=True).clamp(min=_SMALLEST)
    # A quotient of tensors: by a number torch would multiply by its inverse, which rounds twice.
    inverse = torch.full_like(largest, LARGEST) / largest
    return QuantizedRows((x.float() * inverse).to(FP8), largest * (1 / LARGEST))


def rms_norm_quantized(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> QuantizedRows:
    """The rows of `rms_norm` for x [T, D], quantized; its errors too."""
    num_rows, dim = _shape_of(x)
    fits = weight.shape == x.shape[1:] and weight.dtype is x.dtype and weight.is_contiguous()
    if residual is not None:
        fits = fits and residual.shape == x.shape and residual.dtype is x.dtype and _in_vectors(residual)
    if not (fits and _on_kernel(x, dim) and same_gpu(x, weight, residual) and _is_aligned(weight)):
        return quantize_rows(rms_norm(x, weight, eps, residual))
    out = _empty(x, num_rows, dim)
    of_residual = (0, 0) if residual is None else (residual.data_ptr(), residual.stride(0))
    _kernels.rms_norm_quantized(
        x.data_ptr(), x.stride(0), *of_residual, weight.data_ptr(), eps, out.values.data_ptr(), out.scales.data_ptr(),
        num_rows, dim, stream_of(x),
    )  # fmt: skip
    return out


def gate_mul_quantized(gate_up: Tensor | RawProduct, activation: Activation = "silu") -> QuantizedRows:
    """The rows of `gate_mul` for gate_up [T, 2I], or for one that is `rescaled` first, quantized; its errors too."""
    product = None if isinstance(gate_up, Tensor) else gate_up
    rows = gate_up if isinstance(gate_up, Tensor) else gate_up.sums
    num_rows, width = _shape_of(rows)
    takes = activation == "silu" and width % 2 == 0 and (product is None or _takes(product))
    if not (takes and _on_kernel(rows, width // 2)):
        return quantize_rows(gate_mul(rows if product is None else rescaled(product), activation))
    out = _empty(rows, num_rows, width // 2)
    lacking = (0, 0, 0)
    if product is not None:
        bias = 0 if product.bias is None else product.bias.data_ptr()
        lacking = (product.of_rows.data_ptr(), product.of_outputs.data_ptr(), bias)
    _kernels.silu_mul_quantized(
        rows.data_ptr(), rows.stride(0), *lacking, out.values.data_ptr(), out.scales.data_ptr(), num_rows, width // 2,
        stream_of(rows),
    )  # fmt: skip
    return out


def _shape_of(x: Tensor) -> tuple[int, int]:
    if x.dim() != 2:
        raise ValueError(f"rows must be [T, K], are {list(x.shape)}")
    return x.shape[0], x.shape[1]


def _empty(x: Tensor, num_rows: int, depth: int) -> QuantizedRows:
    return QuantizedRows(x.new_empty(num_rows, depth, dtype=FP8), x.new_empty(num_rows, 1, dtype=torch.float32))


def _on_kernel(x: Tensor, depth: int) -> bool:
    """Whether the kernels take rows of x, of which `depth` elements come out."""
    return (
        on_kernels(x)
        and x.dtype is torch.bfloat16
        and depth % (_VECTOR_BYTES // x.element_size()) == 0
        and 0 < depth <= _kernels.MAX_QUANTIZED_DIM
        and _in_vectors(x)
    )


def _takes(product: RawProduct) -> bool:
    """Whether the kernels rescale it."""
    sums, of_outputs, bias = product.sums, product.of_outputs, product.bias
    return (
        on_kernels(sums)
        and same_gpu(sums, product.of_rows, of_outputs, bias)
        and sums.shape[1] % (_VECTOR_BYTES // sums.element_size()) == 0
        and sums.is_contiguous()
        and product.of_rows.is_contiguous()
        and of_outputs.is_contiguous()
        and _is_aligned(sums)
        and _is_aligned(of_outputs)
        and (bias is None or (bias.is_contiguous() and _is_aligned(bias)))
    )


def _in_vectors(x: Tensor) -> bool:
    row_stride, element_stride = x.stride()
    return element_stride == 1 and row_stride * x.element_size() % _VECTOR_BYTES == 0 and _is_aligned(x)


def _is_aligned(x: Tensor) -> bool:
    return x.data_ptr() % _VECTOR_BYTES == 0
