"""Products in 8 bits on a GPU: rows to the bit as their twin quantizes them, products near theirs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.worker.cuda import needs_cuda, poison
from worker.model.config import ModelConfig
from worker.model.decoder import Model
from worker.ops.activation import gate_mul
from worker.ops.attention import AttentionBatch
from worker.ops.linear_fp8 import MAX_RAW_ROWS, Fp8Linear, fp8_linear_reference, fp8_problem
from worker.ops.norm import rms_norm
from worker.ops.quantize import (
    QuantizedRows,
    RawProduct,
    gate_mul_quantized,
    quantize_rows,
    quantize_rows_reference,
    rescaled,
    rescaled_reference,
    rms_norm_quantized,
)
from worker.weights.loader import random_model

pytestmark = needs_cuda
needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
)
CUDA = torch.device("cuda")
# Shorter than a warp, no multiple of one, of models, two and four vectors a thread, more than the kernels have.
DEPTHS = [8, 64, 520, 576, 4096, 8200, 14336, 28672, 32768, 32776, 12]


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed + sum(shape))
    rows = torch.randn(*shape, device="cuda", generator=generator)
    return (rows * 10.0 ** torch.randint(-6, 6, (shape[0], 1), device="cuda", generator=generator)).bfloat16()


def product(num_rows: int, num_outputs: int, depth: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and bias, such that outputs are about 1."""
    generator = torch.Generator("cuda").manual_seed(num_rows + depth)
    x = torch.randn(num_rows, depth, device="cuda", generator=generator)
    weight = torch.randn(num_outputs, depth, device="cuda", generator=generator) / depth**0.5
    bias = torch.randn(num_outputs, device="cuda", generator=generator)
    return x.bfloat16(), weight.bfloat16(), bias.bfloat16()


def poison_rows(num_rows: int, depth: int) -> None:
    torch.full((num_rows, depth), 0x7F, dtype=torch.uint8, device="cuda")
    poison(num_rows, 1, dtype=torch.float32)


def assert_same(got: QuantizedRows, want: QuantizedRows) -> None:
    assert torch.equal(got.scales, want.scales)
    assert torch.equal(got.values.view(torch.uint8), want.values.view(torch.uint8))


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("num_rows", [0, 1, 3, 257])
def test_rows(num_rows: int, depth: int) -> None:
    x = random(num_rows, depth) if num_rows else torch.empty(0, depth, dtype=torch.bfloat16, device="cuda")
    poison_rows(num_rows, depth)
    assert_same(quantize_rows(x), quantize_rows_reference(x))


@pytest.mark.parametrize("offset", [0, 1, 8])
def test_strided_rows(offset: int) -> None:
    wide = random(33, 1000)
    x = wide[:, offset : offset + 512]
    assert_same(quantize_rows(x), quantize_rows_reference(x))
    assert_same(quantize_rows(wide.t()), quantize_rows_reference(wide.t()))


def test_rows_without_a_magnitude() -> None:
    x = torch.zeros(4, 1024, dtype=torch.bfloat16, device="cuda")
    x[1, 3] = 1e-38
    x[2, 700] = float("nan")
    x[3, 1023] = float("inf")
    got = quantize_rows(x)
    assert_same(QuantizedRows(got.values[:2], got.scales[:2]), quantize_rows_reference(x[:2]))
    assert got.values.float()[2:].isnan().any(dim=1).all()


@pytest.mark.parametrize("dim", [64, 520, 576, 4096, 5120, 8192, 16384, 28672])
@pytest.mark.parametrize("num_rows", [1, 3, 257])
def test_behind_a_norm(num_rows: int, dim: int) -> None:
    x, residual, weight = random(num_rows, dim), random(num_rows, dim, seed=1), random(1, dim, seed=2)[0]
    summed = residual.clone()
    for got, want in (
        (rms_norm_quantized(x, weight, 1e-5), rms_norm(x, weight, 1e-5)),
        (rms_norm_quantized(x, weight, 1e-5, residual), rms_norm(x, weight, 1e-5, summed)),
    ):
        if dim > 512:
            assert_same(got, quantize_rows_reference(want))
        else:  # the norm alone adds the squares in another order
            torch.testing.assert_close(got.values.float(), want.float() / got.scales, rtol=2**-3, atol=2**-9)
    assert torch.equal(residual, summed)


@pytest.mark.parametrize("dim", [8, 520, 8192, 14336, 28672, 12])
@pytest.mark.parametrize("num_rows", [1, 5, 300])
def test_behind_a_gate(num_rows: int, dim: int) -> None:
    gate_up = random(num_rows, 2 * dim)
    poison_rows(num_rows, dim)
    assert_same(gate_mul_quantized(gate_up), quantize_rows_reference(gate_mul(gate_up)))
    wide = random(num_rows, 2 * dim + 16)
    assert_same(gate_mul_quantized(wide[:, 8:-8]), quantize_rows_reference(gate_mul(wide[:, 8:-8])))


@pytest.mark.parametrize("num_outputs", [16, 960, 6144, 28672, 36])
@pytest.mark.parametrize("num_rows", [0, 1, 5, 300])
@pytest.mark.parametrize("with_bias", [False, True])
def test_raw_products(num_rows: int, num_outputs: int, with_bias: bool) -> None:
    sums = torch.randn(num_rows, num_outputs, device="cuda").bfloat16() * 1e5
    of_rows, of_outputs = torch.rand(num_rows, 1, device="cuda"), torch.rand(1, num_outputs, device="cuda") * 1e-5
    bias = torch.randn(num_outputs, device="cuda").bfloat16() if with_bias else None
    want = rescaled_reference(RawProduct(sums, of_rows, of_outputs, bias))
    if num_rows:
        got = gate_mul_quantized(RawProduct(sums.clone(), of_rows, of_outputs, bias))
        assert_same(got, quantize_rows_reference(gate_mul(want)))
    assert torch.equal(rescaled(RawProduct(sums, of_rows, of_outputs, bias)), want)
    assert torch.equal(sums, want)


@needs_hopper
def test_the_device_computes_products() -> None:
    assert fp8_problem(CUDA) is None


@needs_hopper
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("num_outputs", "depth"), [(6144, 4096), (4096, 14336), (960, 576), (16, 16), (999, 584)])
def test_products(num_outputs: int, depth: int, with_bias: bool) -> None:
    x, weight, bias = product(MAX_RAW_ROWS + 9, num_outputs, depth)
    linear = Fp8Linear(weight, bias if with_bias else None)
    want = fp8_linear_reference(x, weight, bias if with_bias else None)
    for num_rows in (0, 1, 2, 7, 16, 17, 64, 65, 300, MAX_RAW_ROWS, len(x)):
        poison(num_rows, num_outputs, dtype=torch.bfloat16)
        got = linear(x[:num_rows])
        # The tensor cores keep 13 bits of a sum now and then, and the rounded one may be the next.
        torch.testing.assert_close(got, want[:num_rows], atol=2e-2, rtol=2e-2)


@needs_hopper
@given(
    num_rows=st.integers(1, 200), num_outputs=st.integers(1, 700), depth=st.integers(1, 1000), with_bias=st.booleans()
)
def test_any_shape(num_rows: int, num_outputs: int, depth: int, with_bias: bool) -> None:
    x, weight, bias = product(num_rows, num_outputs, depth)
    got = Fp8Linear(weight, bias if with_bias else None)(x)
    want = fp8_linear_reference(x, weight, bias if with_bias else None)
    torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)


@needs_hopper
def test_nan_and_infinity_come_through() -> None:
    x, weight, _ = product(3, 512, 1024)
    x[0, 5], x[2, 1023] = float("nan"), float("-inf")
    got = Fp8Linear(weight)(x)
    assert got[0].isnan().all()
    assert got[1].isfinite().all()
    assert got[2].isnan().all()


@needs_hopper
def test_captured_and_replayed() -> None:
    x, gate_up, _ = product(8, 2048, 1024)
    down = product(8, 1024, 1024)[1]
    first, second = Fp8Linear(gate_up), Fp8Linear(down)
    second(first.gated(x))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = second(first.gated(x))
    x.copy_(product(9, 2048, 1024)[0][1:])
    graph.replay()
    assert torch.equal(out, second(first.gated(x)))


@needs_hopper
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_logits_of_a_model_are_near_those_without(family: str) -> None:
    config = ModelConfig(family, 1000, 512, 1408, 4, 8, 2, 64, 1e-6, 256, 256, qkv_bias=family == "qwen2")
    want, got = (
        prefill(random_model(config, torch.bfloat16, CUDA, seed=1, quantization=kind)) for kind in ("none", "fp8")
    )
    error = (got - want).square().mean().sqrt() / want.std()
    assert 0 < error < 0.15


def prefill(model: Model) -> Tensor:
    """Logits of each token of two prompts."""
    lengths, width, size = torch.tensor([30, 50], device=CUDA), 4, 16
    slots = torch.cat([torch.arange(30), width * size + torch.arange(50)]).to(CUDA)
    batch = AttentionBatch(
        query_starts=torch.tensor([0, 30, 80], dtype=torch.int32, device=CUDA),
        context_lens=lengths.int(),
        block_tables=torch.arange(2 * width, dtype=torch.int32, device=CUDA).view(2, width),
        slots=slots,
    )
    config = model.config
    shape = (2 * width, config.num_kv_heads, size, config.head_dim)
    empty = torch.full(shape, float("nan"), dtype=model.dtype, device=CUDA)
    kv = [(empty.clone(), empty.clone()) for _ in range(config.num_layers)]
    tokens = torch.randint(0, 1000, (80,), generator=torch.Generator().manual_seed(0)).to(CUDA)
    return model.forward(tokens, slots % (width * size), kv, batch, torch.arange(80, device=CUDA))
