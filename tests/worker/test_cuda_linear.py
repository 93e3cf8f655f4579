"""Products on a GPU against their twin in float64: with few rows by a kernel of our own, with many by PyTorch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from tests.worker.cuda import DTYPES, assert_close, needs_cuda, poison
from worker.ops.linear import Linear, linear_reference
from worker.ops.linear_skinny import MAX_ROWS, takes_weight

pytestmark = needs_cuda
needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
)
HALVES = [torch.float16, torch.bfloat16]
# [N_out, K]: of models; with an odd N; where K is less than a chunk, or no multiple of one; one that is split in 8.
SHAPES = [(6144, 4096), (2048, 8192), (576, 1536), (999, 576), (1, 8), (130, 72), (66, 1000), (3072, 2048)]


def random(seed: int, *shape: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, device="cuda", generator=generator).to(dtype)


def random_product(num_rows: int, num_outputs: int, depth: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and bias, such that outputs are about 1."""
    weight = random(1, num_outputs, depth, dtype=dtype) / depth**0.5
    return random(0, num_rows, depth, dtype=dtype), weight, random(2, num_outputs, dtype=dtype)


def gated_reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    gate, up = linear_reference(x, weight, bias).chunk(2, dim=-1)
    return functional.silu(gate) * up


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 5, 64, 300])
def test_float32_out_of_narrower_inputs(dtype: torch.dtype, with_bias: bool, num_rows: int) -> None:
    x, weight, bias = random_product(num_rows, 999, 576, dtype)
    linear = Linear(weight, bias if with_bias else None)
    want = linear_reference(x.double(), weight.double(), bias.double() if with_bias else None)
    poison(num_rows, 999, dtype=torch.float32)
    got = linear(x, out_dtype=torch.float32)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-4)
    assert_close(linear(x), want)


@needs_hopper
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("num_outputs", "depth"), SHAPES)
def test_few_rows(dtype: torch.dtype, num_outputs: int, depth: int) -> None:
    x, weight, bias = random_product(MAX_ROWS, num_outputs, depth, dtype)
    assert takes_weight(weight, bias)
    linear = Linear(weight, bias)
    want = linear_reference(x.double(), weight.double(), bias.double())
    for num_rows in (1, 2, 7, 8, 9, 15, 16):
        poison(num_rows, num_outputs, dtype=dtype)
        assert_close(linear(x[:num_rows]), want[:num_rows])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("num_outputs", "depth"), [(28672, 512), (3072, 576), (2, 8), (130, 72)])
@pytest.mark.parametrize("num_rows", [0, 1, 9, 16, 17, 64])
def test_gated(dtype: torch.dtype, with_bias: bool, num_outputs: int, depth: int, num_rows: int) -> None:
    x, weight, bias = random_product(num_rows, num_outputs, depth, dtype)
    linear = Linear(weight, bias if with_bias else None)
    want = gated_reference(x.double(), weight.double(), bias.double() if with_bias else None)
    poison(num_rows, num_outputs // 2, dtype=dtype)
    got = linear.gated(x)
    assert got.dtype == dtype
    assert_close(got, want)


@needs_hopper
@given(
    num_rows=st.integers(1, MAX_ROWS), num_outputs=st.integers(1, 700), depth=st.integers(1, 130).map(lambda n: 8 * n),
    dtype=st.sampled_from(HALVES), with_bias=st.booleans(), gated=st.booleans(),
)  # fmt: skip
def test_any_shape(
    num_rows: int, num_outputs: int, depth: int, dtype: torch.dtype, with_bias: bool, gated: bool
) -> None:
    num_outputs *= 2 if gated else 1
    x, weight, bias = random_product(num_rows, num_outputs, depth, dtype)
    linear = Linear(weight, bias if with_bias else None)
    args = (x.double(), weight.double(), bias.double() if with_bias else None)
    if gated:
        poison(num_rows, num_outputs // 2, dtype=dtype)
        assert_close(linear.gated(x), gated_reference(*args))
    else:
        poison(num_rows, num_outputs, dtype=dtype)
        assert_close(linear(x), linear_reference(*args))


@needs_hopper
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("num_outputs", "depth"), SHAPES)
def test_bits_of_a_row_do_not_depend_on_the_rows_beside_it(dtype: torch.dtype, num_outputs: int, depth: int) -> None:
    x, weight, bias = random_product(MAX_ROWS, num_outputs, depth, dtype)
    linear = Linear(weight, bias)
    together = linear(x, torch.float32)
    for first, last in ((0, 1), (15, 16), (5, 13), (2, 14)):
        assert torch.equal(linear(x[first:last], torch.float32), together[first:last])
    if num_outputs % 2 == 0:
        together = linear.gated(x)
        assert torch.equal(linear.gated(x[10:11]), together[10:11])
        assert torch.equal(linear.gated(x[3:14]), together[3:14])


@needs_hopper
def test_rows_of_inputs_and_weights_may_be_apart() -> None:
    fused, weights = random(0, 13, 1000, dtype=torch.bfloat16), random(1, 200, 1000, dtype=torch.bfloat16)
    weights /= 24
    for offset in (0, 8, 3):
        x, weight = fused[:, offset : offset + 576], weights[:, offset : offset + 576]
        assert takes_weight(weight, None) == (offset != 3)
        linear = Linear(weight)
        assert_close(linear(x), linear_reference(x.double(), weight.double()))
        assert_close(linear(x[2:3]), linear_reference(x[2:3].double(), weight.double()))
    x = random(3, 576, 10, dtype=torch.bfloat16).t()
    linear = Linear(weights[:, :576])
    assert_close(linear(x), linear_reference(x.double(), weights[:, :576].double()))


@needs_hopper
@pytest.mark.parametrize(("num_outputs", "depth"), [(6144, 4096), (1536, 2048), (256, 8192)])
@pytest.mark.parametrize("num_rows", [1, 8, 16])
def test_repeats_are_equal(num_outputs: int, depth: int, num_rows: int) -> None:
    """Small weights stay in the L2: stages are filled again as soon as they have been read."""
    x, weight, bias = random_product(num_rows, num_outputs, depth, torch.bfloat16)
    linear = Linear(weight, bias)
    want = linear(x, torch.float32)
    for _ in range(30):
        together = [linear(x, torch.float32) for _ in range(20)]
        assert all(torch.equal(got, want) for got in together)


@needs_hopper
@pytest.mark.parametrize("num_rows", [3, 12])
def test_a_row_that_is_not_finite_stays_alone(num_rows: int) -> None:
    x, weight, bias = random_product(num_rows, 512, 1024, torch.bfloat16)
    linear = Linear(weight, bias)
    want = linear(x)
    x[1] = float("nan")
    got = linear(x)
    assert got[1].isnan().all()
    assert torch.equal(got[2:], want[2:])
    assert torch.equal(got[0], want[0])


@needs_hopper
def test_a_captured_chain_is_replayed_with_new_inputs() -> None:
    """Kernels start behind each other: each must wait for what the one before writes."""
    first, second = (Linear(random(s, 1024, 1024, dtype=torch.bfloat16) / 32) for s in (1, 2))
    x = random(3, 8, 1024, dtype=torch.bfloat16)

    def chain() -> Tensor:
        y = x
        for _ in range(20):
            y = second(first(y))
        return y

    want = chain()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = chain()
    for seed in (3, 4, 5):
        x.copy_(random(seed, 8, 1024, dtype=torch.bfloat16))
        graph.replay()
        assert torch.equal(got, chain())
    x.copy_(random(3, 8, 1024, dtype=torch.bfloat16))
    graph.replay()
    assert torch.equal(got, want)
    assert got.isfinite().all()


def test_what_does_not_fit_is_refused() -> None:
    linear = Linear(random(0, 3, 64, dtype=torch.bfloat16))
    for x in (torch.zeros(2, 64, dtype=torch.bfloat16), torch.zeros(2, 63, dtype=torch.bfloat16, device="cuda"),
              torch.zeros(2, 64, device="cuda"), torch.zeros(64, dtype=torch.bfloat16, device="cuda")):  # fmt: skip
        with pytest.raises(ValueError, match=r"x must be|on one device"):
            linear(x)
        with pytest.raises(ValueError, match=r"x must be|on one device"):
            linear.gated(x)
    with pytest.raises(ValueError, match="2I"):
        linear.gated(torch.zeros(2, 64, dtype=torch.bfloat16, device="cuda"))
