import pytest
import torch
from torch import Tensor

from worker.ops.rope import apply_rope, apply_rope_reference

DTYPES = [torch.float32, torch.bfloat16]


def fused(num_tokens: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of 4 query, 2 key and 2 value heads, with views of the queries and keys."""
    rows = torch.randn(num_tokens, 8 * dim).to(dtype)
    return rows, rows[:, : 4 * dim].view(-1, 4, dim), rows[:, 4 * dim : 6 * dim].view(-1, 2, dim)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [2, 8, 24, 32, 40, 64, 128])
def test_equals_the_twin_in_place(isa: str, dtype: torch.dtype, dim: int) -> None:
    cos_sin = torch.randn(50, dim)
    for num_tokens in (0, 1, 5, 200):
        rows, q, k = fused(num_tokens, dim, dtype)
        values = rows[:, 6 * dim :].clone()
        want_q, want_k = q.double(), k.double()
        positions = torch.randint(0, 50, (num_tokens,))
        apply_rope_reference(want_q, want_k, positions, cos_sin)
        apply_rope(q, k, positions, cos_sin)
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(q.double(), want_q, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(k.double(), want_k, atol=tolerance, rtol=tolerance)
        assert torch.equal(rows[:, 6 * dim :], values)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_is_bitwise_the_same_in_every_batch(isa: str, num_threads: int, dtype: torch.dtype) -> None:
    cos_sin = torch.randn(50, 64)
    _, q, k = fused(300, 64, dtype)
    positions = torch.randint(0, 50, (300,))
    alone = [(q[t : t + 1].clone(), k[t : t + 1].clone()) for t in (0, 150, 299)]
    apply_rope(q, k, positions, cos_sin)
    for t, (one_q, one_k) in zip((0, 150, 299), alone, strict=True):
        apply_rope(one_q, one_k, positions[t : t + 1], cos_sin)
        assert torch.equal(one_q[0], q[t])
        assert torch.equal(one_k[0], k[t])


def test_other_layouts_and_dtypes(isa: str) -> None:
    cos_sin = torch.randn(9, 16)
    positions = torch.randint(0, 9, (6,))
    q, k = torch.randn(6, 4, 16), torch.randn(6, 2, 16)
    want_q, want_k = q.clone(), k.clone()
    apply_rope(want_q, want_k, positions, cos_sin)
    other_q, other_k = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k))
    apply_rope(other_q, other_k, positions.to(torch.int32), cos_sin)
    torch.testing.assert_close(other_q, want_q)
    torch.testing.assert_close(other_k, want_k)
    double_q, double_k = q.double(), k.double()
    apply_rope(double_q, double_k, positions, cos_sin)
    torch.testing.assert_close(double_q.float(), want_q)
    narrow_q, narrow_k = q.clone(), k.clone()
    apply_rope(narrow_q, narrow_k, positions.to(torch.int32), cos_sin.t().contiguous().t())
    assert torch.equal(narrow_q, want_q)


def test_positions_outside_the_table_are_refused_before_any_write() -> None:
    q, k = torch.ones(2, 1, 8), torch.ones(2, 1, 8)
    for bad in (-1, 5):
        with pytest.raises(IndexError, match=f"position {bad}"):
            apply_rope(q, k, torch.tensor([0, bad]), torch.zeros(5, 8))
    assert (q == 1).all()
    assert (k == 1).all()


def test_shapes_that_do_not_fit() -> None:
    q, k, positions, cos_sin = (
        torch.ones(2, 4, 8),
        torch.ones(2, 1, 8),
        torch.zeros(2, dtype=torch.int64),
        torch.ones(3, 8),
    )
    with pytest.raises(ValueError, match="do not fit"):
        apply_rope(q, k[:1], positions, cos_sin)
    with pytest.raises(ValueError, match="do not fit"):
        apply_rope(q, k, positions[:1], cos_sin)
    with pytest.raises(ValueError, match="do not fit"):
        apply_rope(q, k, positions, cos_sin[:, :4])
    with pytest.raises(ValueError, match="do not fit"):
        apply_rope(q, k.bfloat16(), positions, cos_sin)


def test_tensors_of_several_devices_are_refused() -> None:
    arguments = {
        "q": torch.ones(2, 4, 8),
        "k": torch.ones(2, 1, 8),
        "positions": torch.zeros(2, dtype=torch.int64),
        "cos_sin": torch.ones(3, 8),
    }
    for name, tensor in arguments.items():
        with pytest.raises(ValueError, match=f"one device: .*{name} on meta"):
            apply_rope(**{**arguments, name: tensor.to("meta")})
