import pytest
import torch
from torch import Tensor

from worker import _core
from worker.ops.linear import Linear, linear_reference

DTYPES = [torch.float32, torch.bfloat16]


def tolerance(dtype: torch.dtype) -> float:
    return 1e-5 if dtype == torch.float32 else 1e-2


def expected(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return linear_reference(x.double(), weight.double(), None if bias is None else bias.double())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_outputs", [1, 15, 16, 17, 64, 65, 130])
@pytest.mark.parametrize("depth", [1, 2, 7, 33, 576])
def test_equals_the_twin(isa: str, dtype: torch.dtype, num_outputs: int, depth: int) -> None:
    generator = torch.Generator().manual_seed(num_outputs * 1000 + depth)
    weight = torch.randn(num_outputs, depth, generator=generator).to(dtype)
    for num_tokens in (0, 1, 2, 5, 6, 7, 8, 13, 40):
        x = torch.randn(num_tokens, depth, generator=generator).to(dtype) / depth**0.5
        for bias in (None, torch.randn(num_outputs, generator=generator).to(dtype)):
            linear = Linear(weight, bias)
            want = expected(x, weight, bias)
            narrow = linear(x)
            assert narrow.dtype == dtype
            torch.testing.assert_close(narrow.double(), want, atol=tolerance(dtype), rtol=tolerance(dtype))
            wide = linear(x, torch.float32)
            assert wide.dtype == torch.float32
            torch.testing.assert_close(wide.double(), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_bitwise_the_same_in_every_batch(isa: str, num_threads: int, dtype: torch.dtype) -> None:
    weight = torch.randn(200, 576).to(dtype)
    linear = Linear(weight, torch.randn(200).to(dtype))
    x = torch.randn(600, 576).to(dtype)
    together = linear(x, torch.float32)
    for row in (0, 5, 6, 299, 300, 599):
        assert torch.equal(linear(x[row : row + 1], torch.float32)[0], together[row])
    for begin, end in ((0, 3), (1, 8), (100, 111), (7, 520)):
        assert torch.equal(linear(x[begin:end], torch.float32), together[begin:end])
    _core.set_num_threads(1)
    assert torch.equal(linear(x, torch.float32), together)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_original_weight_is_not_needed(dtype: torch.dtype) -> None:
    weight = torch.randn(40, 64).to(dtype)
    bias = torch.randn(40).to(dtype)
    x = torch.randn(3, 64).to(dtype)
    linear = Linear(weight, bias)
    before = linear(x)
    weight.fill_(float("nan"))
    bias.fill_(float("nan"))
    assert torch.equal(linear(x), before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_weights_and_rows(isa: str, dtype: torch.dtype) -> None:
    weight = torch.randn(64, 33).to(dtype)
    x = torch.randn(9, 128).to(dtype)[:, 3:67]
    got = Linear(weight.t())(x)
    torch.testing.assert_close(got.double(), expected(x, weight.t(), None), atol=0.2, rtol=tolerance(dtype))
    assert torch.equal(got, Linear(weight.t().contiguous())(x.contiguous()))
    columns = torch.randn(64, 9).to(dtype).t()
    assert torch.equal(Linear(weight.t())(columns), Linear(weight.t())(columns.contiguous()))


def test_writes_nothing_beside_its_rows(isa: str) -> None:
    """The last tile of outputs is narrower than a vector: the next row must not be touched, nor the last overrun."""
    linear = Linear(torch.ones(17, 8))
    packed = linear._packed
    assert packed is not None
    x = torch.ones(2, 8)
    out = torch.full((4 * 17,), float("nan"))
    packed.linear(x.data_ptr(), 8, 2, out[17:].data_ptr(), False)
    assert out[:17].isnan().all()
    assert (out[17:51] == 8).all()
    assert out[51:].isnan().all()


def test_not_a_number_comes_through(isa: str) -> None:
    for dtype in DTYPES:
        x = torch.ones(3, 32, dtype=dtype)
        x[1, 7] = float("nan")
        got = Linear(torch.ones(20, 32, dtype=dtype))(x)
        assert got[1].isnan().all()
        assert (got[::2] == 32).all()


def test_bfloat16_rounds_to_nearest_even(isa: str) -> None:
    exact = torch.tensor([[1.0], [1.00390625], [1.01171875], [-1.00390625], [3.3895314e38], [float("inf")]])
    # 1 + 2^-8 and 1 + 3 * 2^-8 lie midway between two bfloat16; the product with 1 in pairs is exact.
    x = torch.zeros(len(exact), 2, dtype=torch.bfloat16)
    high = exact[:, 0].to(torch.bfloat16)
    rest = torch.where(exact[:, 0].isinf(), 0.0, exact[:, 0] - high.float()).to(torch.bfloat16)
    x[:, 0], x[:, 1] = high, rest
    got = Linear(torch.ones(1, 2, dtype=torch.bfloat16))(x)[:, 0]
    assert torch.equal(got, exact[:, 0].to(torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_dtypes_take_the_twin(dtype: torch.dtype) -> None:
    weight, bias, x = torch.randn(6, 4).to(dtype), torch.randn(6).to(dtype), torch.randn(3, 4).to(dtype)
    assert torch.equal(Linear(weight, bias)(x), torch.nn.functional.linear(x, weight, bias))


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="weight must be"):
        Linear(torch.zeros(4))
    with pytest.raises(ValueError, match="not empty"):
        Linear(torch.zeros(0, 4))
    with pytest.raises(ValueError, match="bias must be"):
        Linear(torch.zeros(4, 8), torch.zeros(8))
    linear = Linear(torch.zeros(4, 8))
    with pytest.raises(ValueError, match=r"x must be torch.float32 \[T, 8\]"):
        linear(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="x must be"):
        linear(torch.zeros(2, 8, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="out_dtype"):
        linear(torch.zeros(2, 8), torch.float16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_of_several_devices_are_refused(dtype: torch.dtype) -> None:
    weight, bias, x = torch.zeros(4, 8, dtype=dtype), torch.zeros(4, dtype=dtype), torch.zeros(2, 8, dtype=dtype)
    with pytest.raises(ValueError, match=r"one device: .*bias on meta"):
        Linear(weight, bias.to("meta"))
    with pytest.raises(ValueError, match="on meta"):
        Linear(weight)(x.to("meta"))
    with pytest.raises(ValueError, match="one device: x on cpu, weight on meta"):
        Linear(weight.to("meta"))(x)
