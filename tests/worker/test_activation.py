import pytest
import torch

from worker.ops.activation import Activation, gate_mul, gate_mul_reference

DTYPES = [torch.float32, torch.bfloat16]
ACTIVATIONS: list[Activation] = ["silu", "gelu_tanh"]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 8, 15, 16, 33, 1536])
def test_equals_the_twin(isa: str, dtype: torch.dtype, dim: int, activation: Activation) -> None:
    for num_tokens in (0, 1, 3, 50):
        gate_up = (torch.randn(num_tokens, 2 * dim) * 5).to(dtype)
        got = gate_mul(gate_up, activation)
        assert got.dtype == dtype
        tolerance = 2e-6 if dtype == torch.float32 else 1e-2
        want = gate_mul_reference(gate_up.double(), activation)
        torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_extremes(isa: str, activation: Activation) -> None:
    gate = torch.tensor([-1e30, -200.0, -88.0, -30.0, -0.0, 0.0, 30.0, 88.0, 200.0, 1e30, float("inf"), float("nan")])
    got = gate_mul(torch.cat((gate, torch.ones(len(gate))))[None], activation)[0]
    want = gate_mul_reference(torch.cat((gate, torch.ones(len(gate))))[None].double(), activation)[0].float()
    # Far below zero the exact value is smaller than a float can tell from what is left of the gate.
    torch.testing.assert_close(got[3:], want[3:], equal_nan=True)
    assert (got[:3].abs() < 1e-5).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_bitwise_the_same_in_every_batch(isa: str, num_threads: int, dtype: torch.dtype) -> None:
    gate_up = torch.randn(200, 3072).to(dtype)
    together = gate_mul(gate_up)
    for row in (0, 99, 199):
        assert torch.equal(gate_mul(gate_up[row : row + 1])[0], together[row])


def test_strided_rows_and_other_dtypes(isa: str) -> None:
    for dtype in DTYPES:
        wide = torch.randn(7, 100).to(dtype)
        assert torch.equal(gate_mul(wide[:, 10:76]), gate_mul(wide[:, 10:76].contiguous()))
        columns = torch.randn(66, 7).to(dtype).t()
        assert torch.equal(gate_mul(columns), gate_mul(columns.contiguous()))
    x = torch.randn(3, 8, dtype=torch.float64)
    assert torch.equal(gate_mul(x), gate_mul_reference(x))


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"\[T, 2I\]"):
        gate_mul(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"\[T, 2I\]"):
        gate_mul(torch.zeros(4))
