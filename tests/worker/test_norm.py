import pytest
import torch

from worker.ops.norm import rms_norm, rms_norm_reference

DTYPES = [torch.float32, torch.bfloat16]


def tolerance(dtype: torch.dtype) -> float:
    return 1e-5 if dtype == torch.float32 else 1e-2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 8, 15, 16, 17, 33, 64, 576])
def test_equals_the_twin(isa: str, dtype: torch.dtype, dim: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    weight = torch.randn(dim, generator=generator).to(dtype)
    for num_tokens in (0, 1, 3, 100):
        x = torch.randn(num_tokens, dim, generator=generator).to(dtype)
        want = rms_norm_reference(x.double(), weight.double(), 1e-5)
        torch.testing.assert_close(
            rms_norm(x, weight, 1e-5).double(), want, atol=tolerance(dtype), rtol=tolerance(dtype)
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [8, 33, 576])
def test_the_residual_is_summed_in_place_first(isa: str, dtype: torch.dtype, dim: int) -> None:
    weight = torch.randn(dim).to(dtype)
    x, residual = torch.randn(40, dim).to(dtype), torch.randn(40, dim).to(dtype)
    summed = residual + x
    want = rms_norm_reference(summed.double(), weight.double(), 1e-5)
    kept = x.clone()
    got = rms_norm(x, weight, 1e-5, residual)
    assert torch.equal(residual, summed)
    assert torch.equal(x, kept)
    torch.testing.assert_close(got.double(), want, atol=tolerance(dtype), rtol=tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_as_views_of_a_fused_row(isa: str, dtype: torch.dtype) -> None:
    fused = torch.randn(300, 8 * 24).to(dtype)
    heads = fused[:, 24:120].view(300, 4, 24)
    weight = torch.randn(24).to(dtype)
    assert torch.equal(rms_norm(heads, weight, 1e-6), rms_norm(heads.contiguous(), weight, 1e-6))
    residual_rows = torch.randn(300, 8 * 24).to(dtype)
    residual = residual_rows[:, :96].view(300, 4, 24)
    untouched = residual_rows[:, 96:].clone()
    want = residual.clone()
    got = rms_norm(heads, weight, 1e-6, residual)
    assert torch.equal(got, rms_norm(heads.contiguous(), weight, 1e-6, want))
    assert torch.equal(residual, want)
    assert torch.equal(residual_rows[:, 96:], untouched)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_bitwise_the_same_in_every_batch(isa: str, num_threads: int, dtype: torch.dtype) -> None:
    x = torch.randn(500, 576).to(dtype)
    weight = torch.randn(576).to(dtype)
    together = rms_norm(x, weight, 1e-5)
    for row in (0, 1, 250, 499):
        assert torch.equal(rms_norm(x[row : row + 1], weight, 1e-5)[0], together[row])
        assert torch.equal(rms_norm(x[row], weight, 1e-5), together[row])


def test_other_layouts_and_dtypes(isa: str) -> None:
    weight = torch.randn(32)
    columns = torch.randn(32, 9).t()
    assert torch.equal(rms_norm(columns, weight, 1e-5), rms_norm(columns.contiguous(), weight, 1e-5))
    x = torch.randn(5, 32, dtype=torch.float64)
    assert torch.equal(rms_norm(x, weight.double(), 1e-5), rms_norm_reference(x, weight.double(), 1e-5))
    strided = torch.zeros(32, 9).t()
    torch.testing.assert_close(rms_norm(columns, weight, 1e-5, strided), rms_norm(columns, weight, 1e-5))
    assert torch.equal(strided, columns)


def test_shapes_that_do_not_fit() -> None:
    x = torch.zeros(2, 8)
    with pytest.raises(ValueError, match="do not fit"):
        rms_norm(x, torch.ones(4), 1e-5)
    with pytest.raises(ValueError, match="do not fit"):
        rms_norm(x, torch.ones(8, dtype=torch.bfloat16), 1e-5)
    with pytest.raises(ValueError, match="do not fit"):
        rms_norm(x, torch.ones(8), 1e-5, torch.zeros(3, 8))


def test_tensors_of_several_devices_are_refused() -> None:
    x, weight, residual = torch.zeros(2, 8), torch.ones(8), torch.zeros(2, 8)
    with pytest.raises(ValueError, match="one device: x on meta"):
        rms_norm(x.to("meta"), weight, 1e-5, residual)
    with pytest.raises(ValueError, match=r"one device: .*weight on meta"):
        rms_norm(x, weight.to("meta"), 1e-5)
    with pytest.raises(ValueError, match=r"one device: .*residual on meta"):
        rms_norm(x, weight, 1e-5, residual.to("meta"))
