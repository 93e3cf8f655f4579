"""Products in 8 bits against their twin, which rounds the same and multiplies in float32."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from worker.ops import linear_fp8
from worker.ops.activation import gate_mul
from worker.ops.linear_fp8 import Fp8Linear, fp8_linear_reference, fp8_problem
from worker.ops.quantize import quantize_rows


def product(num_rows: int, num_outputs: int, depth: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and bias, such that outputs are about 1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, depth, generator=generator).bfloat16()
    weight = (torch.randn(num_outputs, depth, generator=generator) / depth**0.5).bfloat16()
    return x, weight, torch.randn(num_outputs, generator=generator).bfloat16()


@given(
    num_rows=st.integers(0, 9), num_outputs=st.integers(1, 70), depth=st.integers(1, 130), with_bias=st.booleans(),
)  # fmt: skip
def test_equals_the_twin(num_rows: int, num_outputs: int, depth: int, with_bias: bool) -> None:
    x, weight, bias = product(num_rows, num_outputs, depth)
    linear = Fp8Linear(weight, bias if with_bias else None)
    want = fp8_linear_reference(x, weight, bias if with_bias else None)
    got = linear(x)
    assert (got.dtype, got.shape) == (torch.bfloat16, (num_rows, num_outputs))
    torch.testing.assert_close(got, want, atol=1.6e-2, rtol=1.6e-2)
    assert torch.equal(linear(quantize_rows(x)), got)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("num_outputs", [64, 66])
def test_it_makes_no_difference_who_applies_the_scales(
    monkeypatch: pytest.MonkeyPatch, with_bias: bool, num_outputs: int
) -> None:
    x, weight, bias = product(9, num_outputs, 96)
    linear = Fp8Linear(weight, bias if with_bias else None)
    by_us, by_us_gated = linear(x), linear.gated(x).widened()
    monkeypatch.setattr(linear_fp8, "MAX_RAW_ROWS", 8)
    torch.testing.assert_close(linear(x), by_us, atol=1e-2, rtol=2**-6)
    torch.testing.assert_close(linear.gated(x).widened(), by_us_gated, atol=0.1, rtol=2**-3)
    torch.testing.assert_close(linear(x[:8]), by_us[:8], atol=0, rtol=0)


def test_it_is_near_the_product_of_what_was_rounded() -> None:
    x, weight, _ = product(64, 256, 1024)
    exact = x.float() @ weight.float().t()
    error = (Fp8Linear(weight)(x).float() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert 0.01 < error < 0.06


def test_gated_gives_what_the_next_product_reads() -> None:
    x, weight, _ = product(5, 96, 64)
    linear = Fp8Linear(weight)
    got, want = linear.gated(x), quantize_rows(gate_mul(linear(x)))
    assert torch.equal(got.values.view(torch.uint8), want.values.view(torch.uint8))
    assert torch.equal(got.scales, want.scales)


def test_it_keeps_a_copy_of_its_own() -> None:
    x, weight, _ = product(3, 32, 32)
    linear = Fp8Linear(weight)
    before = linear(x)
    weight.fill_(float("nan"))
    assert torch.equal(linear(x), before)


def test_a_row_with_nan_or_infinity_is_seen_in_all_its_outputs() -> None:
    x, weight, _ = product(3, 32, 64)
    x[0, 5], x[2, 63] = float("nan"), float("-inf")
    got = Fp8Linear(weight)(x)
    assert got[0].isnan().all()
    assert got[1].isfinite().all()
    assert got[2].isnan().all()


def test_what_does_not_fit_is_refused() -> None:
    weight = torch.ones(16, 32, dtype=torch.bfloat16)
    for wrong in (weight.float(), weight[0], weight[:0]):
        with pytest.raises(ValueError, match="weight must be bfloat16"):
            Fp8Linear(wrong)
    with pytest.raises(ValueError, match="bias must be bfloat16"):
        Fp8Linear(weight, torch.ones(16))
    linear = Fp8Linear(weight)
    with pytest.raises(ValueError, match=r"x must be \[T, 32\]"):
        linear(weight[:, :16])
    with pytest.raises(ValueError, match="x must be bfloat16"):
        linear(weight.float())


def test_a_device_is_asked_by_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    assert fp8_problem(device) is None

    def refuse(*args: object, **settings: object) -> Tensor:
        raise RuntimeError("only on compute capability >= 8.9\nException raised from here")

    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    assert fp8_problem(device) == "only on compute capability >= 8.9"
    monkeypatch.setattr(torch, "_scaled_mm", lambda *args, **settings: torch.zeros(1, 32))
    assert fp8_problem(device) == f"torch {torch.__version__} computes a wrong product"
