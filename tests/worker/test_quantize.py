"""Rows in 8 bits: every value is the nearest there is, and what stands for a row is near it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from worker.ops.activation import gate_mul
from worker.ops.dtypes import FP8
from worker.ops.norm import rms_norm
from worker.ops.quantize import (
    QuantizedRows,
    RawProduct,
    gate_mul_quantized,
    quantize_rows,
    rescaled,
    rms_norm_quantized,
)

# Every finite float8_e4m3fn, ascending.
CODES = torch.arange(256, dtype=torch.uint8).view(FP8).double()
CODES = torch.unique(CODES[CODES.isfinite()])


def same(got: QuantizedRows, want: QuantizedRows) -> bool:
    equal = torch.equal(got.values.view(torch.uint8), want.values.view(torch.uint8))
    return equal and torch.equal(got.scales, want.scales)


def random(num_rows: int, depth: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(num_rows, depth, generator=generator)
    return (rows * 10.0 ** torch.randint(-6, 6, (num_rows, 1), generator=generator)).bfloat16()


@given(num_rows=st.integers(1, 5), depth=st.integers(1, 70), seed=st.integers(0, 1000))
def test_every_value_is_the_nearest(num_rows: int, depth: int, seed: int) -> None:
    x = random(num_rows, depth, seed)
    got = quantize_rows(x)
    assert (got.values.dtype, got.scales.dtype, got.scales.shape) == (FP8, torch.float32, (num_rows, 1))
    assert (got.values.float().abs().amax(dim=1) == 448).all()
    torch.testing.assert_close(got.scales * 448, x.float().abs().amax(dim=1, keepdim=True))
    exact = x.double() / got.scales.double()
    distance = (exact - got.values.double()).abs()
    nearest = (exact.unsqueeze(-1) - CODES).abs().amin(dim=-1)
    # Halfway between two values the float32 quotient may fall on either side.
    assert (distance <= nearest * (1 + 1e-6) + exact.abs() * 1e-6).all()
    # Half a step: 2**-4 of a value, or 2**-10 where they are spaced evenly.
    assert ((got.widened() - x).abs() <= x.abs() * 2**-4 + got.scales * 2**-10).all()


def test_rows_without_a_magnitude() -> None:
    x = torch.zeros(4, 16, dtype=torch.bfloat16)
    x[1, 3] = 1e-38
    x[2, 5] = float("nan")
    x[3, 0] = float("inf")
    got = quantize_rows(x)
    assert not got.values[:2].float().any()
    assert got.scales[:2].isfinite().all()
    assert got.values.float()[2:].isnan().any(dim=1).all()
    assert quantize_rows(x[:0]).values.shape == (0, 16)


def test_behind_another_operation_it_is_that_one_first() -> None:
    x, residual, weight = random(7, 48), random(7, 48, seed=1), random(1, 48, seed=2)[0]
    assert same(rms_norm_quantized(x, weight, 1e-5), quantize_rows(rms_norm(x, weight, 1e-5)))
    summed = residual.clone()
    want = quantize_rows(rms_norm(x, weight, 1e-5, summed))
    assert same(rms_norm_quantized(x, weight, 1e-5, residual), want)
    assert torch.equal(residual, summed)
    gate_up = torch.randn(7, 96).bfloat16()
    assert same(gate_mul_quantized(gate_up), quantize_rows(gate_mul(gate_up)))


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_raw_product_gets_what_it_lacks(with_bias: bool) -> None:
    sums, of_rows, of_outputs = torch.randn(5, 32).bfloat16() * 1e5, torch.rand(5, 1), torch.rand(1, 32) * 1e-5
    bias = torch.randn(32).bfloat16() if with_bias else None
    want = sums.double() * of_rows * of_outputs + (0 if bias is None else bias.double())
    got = rescaled(RawProduct(sums.clone(), of_rows, of_outputs, bias))
    torch.testing.assert_close(got, want.bfloat16(), atol=1e-2, rtol=2**-7)
    quantized = gate_mul_quantized(RawProduct(sums.clone(), of_rows, of_outputs, bias))
    assert same(quantized, quantize_rows(gate_mul(got)))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rows must be \[T, K\]"):
        quantize_rows(torch.ones(3))
    with pytest.raises(ValueError, match="do not fit each other"):
        rms_norm_quantized(torch.ones(3, 8), torch.ones(7), 1e-5)
    with pytest.raises(ValueError, match=r"gate_up must be \[T, 2I\]"):
        gate_mul_quantized(torch.ones(3, 7))
