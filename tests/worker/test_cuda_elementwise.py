"""The CUDA kernels of a layer's small work against their twins in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.worker.cuda import DTYPES, assert_close, needs_cuda, needs_two_gpus, poison
from worker.model.config import RopeConfig
from worker.model.rope import cos_sin_table
from worker.ops.activation import Activation, gate_mul, gate_mul_reference
from worker.ops.attention import write_kv
from worker.ops.dtypes import FP8
from worker.ops.heads import place_heads
from worker.ops.norm import rms_norm, rms_norm_reference
from worker.ops.rope import apply_rope, apply_rope_reference

pytestmark = needs_cuda
HEADS = [(32, 8, 128), (32, 8, 64), (9, 3, 64), (28, 4, 128), (5, 5, 96), (8, 1, 256), (2, 1, 6), (3, 1, 248)]


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed + sum(shape))
    return torch.randn(*shape, device="cuda", generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 8, 15, 64, 512, 513, 576, 2048, 4096, 4100, 16384])
@pytest.mark.parametrize("num_rows", [0, 1, 3, 257])
def test_rms_norm(dtype: torch.dtype, dim: int, num_rows: int) -> None:
    x, residual, weight = (random(n, dim, dtype=dtype, seed=s) for s, n in enumerate((num_rows, num_rows, 1)))
    weight = weight[0]
    poison(num_rows, dim, dtype=dtype)
    assert_close(rms_norm(x, weight, 1e-5), rms_norm_reference(x.double(), weight.double(), 1e-5))
    summed = x + residual
    kept = x.clone()
    assert_close(rms_norm(x, weight, 1e-5, residual), rms_norm_reference(summed.double(), weight.double(), 1e-5))
    assert torch.equal(residual, summed)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_of_a_row_depends_on_that_row_alone(dtype: torch.dtype) -> None:
    for dim in (64, 576, 4096):
        x, weight = random(100, dim, dtype=dtype), random(dim, dtype=dtype)
        together = rms_norm(x, weight, 1e-5)
        for row in (0, 17, 99):
            assert torch.equal(rms_norm(x[row : row + 1], weight, 1e-5), together[row : row + 1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0, 1, 8])
def test_rms_norm_of_strided_heads(dtype: torch.dtype, offset: int) -> None:
    fused = random(33, 1000, dtype=dtype)
    heads = fused[:, offset : offset + 5 * 128].view(33, 5, 128)
    weight = random(128, dtype=dtype)
    assert_close(rms_norm(heads, weight, 1e-6), rms_norm_reference(heads.double(), weight.double(), 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 7, 8, 576, 8192, 14336])
@pytest.mark.parametrize("num_rows", [0, 1, 5, 300])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gate_mul(dtype: torch.dtype, dim: int, num_rows: int, activation: Activation) -> None:
    gate_up = random(num_rows, 2 * dim, dtype=dtype) * 4
    poison(num_rows, dim, dtype=dtype)
    assert_close(gate_mul(gate_up, activation), gate_mul_reference(gate_up.double(), activation))
    wide = random(num_rows, 2 * dim + 3, dtype=dtype)
    assert_close(gate_mul(wide[:, 1:-2], activation), gate_mul_reference(wide[:, 1:-2].double(), activation))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gate_mul_at_the_ends(activation: Activation) -> None:
    gate = torch.tensor([[-1e4, -200.0, -0.0, 200.0, 1e4, float("nan")]], device="cuda")
    got = gate_mul(torch.cat((gate, torch.ones_like(gate)), dim=1), activation)
    assert got[0, :2].abs().max() == 0
    assert got[0, 3:5].tolist() == [200.0, 1e4]
    assert got[0, 5].isnan()


class Step:
    """The heads of some tokens as views of one fused row, an old cache of NaN, and a place for each token."""

    def __init__(self, dtype: torch.dtype, heads: tuple[int, int, int], num_tokens: int, block_size: int) -> None:
        self.num_heads, self.num_kv_heads, dim = heads
        widths = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        self.fused = random(num_tokens, sum(widths) * dim, dtype=dtype)
        self.q, self.k, self.v = self.fused.view(num_tokens, sum(widths), dim).split_with_sizes(widths, dim=1)
        self.norms = (random(dim, dtype=dtype), random(dim, dtype=dtype, seed=1))
        num_blocks = num_tokens // block_size + 3
        shape = (num_blocks, self.num_kv_heads, block_size, dim)
        self.k_cache = torch.full(shape, float("nan"), dtype=dtype, device="cuda")
        self.v_cache = self.k_cache.clone()
        order = torch.randperm(num_blocks * block_size, generator=torch.Generator().manual_seed(num_tokens))
        self.slots = order[:num_tokens].cuda()
        self.positions = torch.randint(0, 500, (num_tokens,), generator=torch.Generator().manual_seed(1)).cuda()
        self.cos_sin = cos_sin_table(RopeConfig(10000.0), dim, 500, torch.device("cuda"))
        self.block_size = block_size

    def check_cache(self, cache: Tensor, want: Tensor) -> None:
        """Each token's rows are at its slot; every other slot is as it was."""
        rows = cache.transpose(1, 2).reshape(-1, *want.shape[1:])  # [N * S, G, D]
        assert_close(rows[self.slots], want)
        rest = torch.ones(len(rows), dtype=torch.bool, device="cuda")
        rest[self.slots] = False
        assert rows[rest].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("num_tokens", [0, 1, 16, 77])
@pytest.mark.parametrize("with_norms", [True, False])
def test_place_heads(dtype: torch.dtype, heads: tuple[int, int, int], num_tokens: int, with_norms: bool) -> None:
    step = Step(dtype, heads, num_tokens, 16)
    q, k, v = step.q.double(), step.k.double(), step.v.clone()
    if with_norms:
        q, k = (rms_norm_reference(x, norm.double(), 1e-6) for x, norm in zip((q, k), step.norms, strict=True))
    apply_rope_reference(q, k, step.positions, step.cos_sin)
    got = place_heads(
        step.q, step.k, step.v, step.norms if with_norms else None, 1e-6, step.positions, step.cos_sin,
        step.k_cache, step.v_cache, step.slots,
    )  # fmt: skip
    assert_close(got, q)
    step.check_cache(step.k_cache, k)
    step.check_cache(step.v_cache, v)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("with_norms", [True, False])
def test_place_heads_in_a_cache_of_float8(dtype: torch.dtype, heads: tuple[int, int, int], with_norms: bool) -> None:
    step = Step(dtype, heads, 77, 16)
    step.v[5] = 10000.0  # more than there is
    kept = step.fused.clone()
    k, v = step.k.double(), step.v.double()
    if with_norms:
        k = rms_norm_reference(k, step.norms[1].double(), 1e-6)
    apply_rope_reference(k.clone(), k, step.positions, step.cos_sin)
    k_cache, v_cache = step.k_cache.to(FP8), step.v_cache.to(FP8)
    norms = step.norms if with_norms else None
    caches = k_cache, v_cache, step.slots, (0.5, 3.0)
    place_heads(step.q, step.k, step.v, norms, 1e-6, step.positions, step.cos_sin, *caches)
    check_float8(step, k_cache, k / 0.5)
    check_float8(step, v_cache, v / 3.0)

    step.fused.copy_(kept)
    k_cache, v_cache = step.k_cache.to(FP8), step.v_cache.to(FP8)
    write_kv(step.k, step.v, k_cache, v_cache, step.slots, (0.5, 3.0))
    check_float8(step, k_cache, step.k.double() / 0.5)
    check_float8(step, v_cache, v / 3.0)


def check_float8(step: Step, cache: Tensor, want: Tensor) -> None:
    """Each token's rows are at its slot, rounded to the nearest; every other slot is as it was."""
    rows = cache.double().transpose(1, 2).reshape(-1, *want.shape[1:])
    # Half a step of three bits, or of the smallest numbers, and what `want` was rounded before.
    torch.testing.assert_close(rows[step.slots], want.clamp(-448, 448), atol=2**-10 * 1.1, rtol=2**-4 * 1.1)
    rest = torch.ones(len(rows), dtype=torch.bool, device="cuda")
    rest[step.slots] = False
    assert rows[rest].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS)
def test_rope_and_kv_writes_alone(dtype: torch.dtype, heads: tuple[int, int, int]) -> None:
    step = Step(dtype, heads, 50, 8)
    q, k, v = step.q.double(), step.k.double(), step.v.clone()
    apply_rope_reference(q, k, step.positions, step.cos_sin)
    apply_rope(step.q, step.k, step.positions, step.cos_sin)
    assert_close(step.q, q)
    assert_close(step.k, k)
    assert torch.equal(step.v, v)
    write_kv(step.k, step.v, step.k_cache, step.v_cache, step.slots)
    step.check_cache(step.k_cache, step.k)
    step.check_cache(step.v_cache, step.v)


def test_padding_is_not_written() -> None:
    step = Step(torch.bfloat16, (4, 2, 64), 8, 16)
    slots = step.slots.clone()
    slots[3], slots[5] = -1, step.k_cache.shape[0] * 16
    q = step.q.clone()
    step.positions[6] = 500
    place_heads(
        step.q, step.k, step.v, None, 1e-6, step.positions, step.cos_sin, step.k_cache, step.v_cache, slots
    )  # fmt: skip
    rows = step.k_cache.transpose(1, 2).reshape(-1, 2, 64)
    assert (~rows.isnan()).any(dim=2).any(dim=1).sum() == 5
    assert torch.equal(step.q[6], q[6])


def test_what_does_not_fit_is_refused() -> None:
    step = Step(torch.bfloat16, (4, 2, 64), 8, 16)
    with pytest.raises(ValueError, match="do not fit each other"):
        place_heads(
            step.q, step.k, step.v[:, :1], None, 1e-6, step.positions, step.cos_sin, step.k_cache, step.v_cache,
            step.slots,
        )  # fmt: skip
    with pytest.raises(ValueError, match="on one device"):
        rms_norm(step.q, step.norms[0].cpu(), 1e-6)
    with pytest.raises(ValueError, match="on one device"):
        write_kv(step.k, step.v, step.k_cache.cpu(), step.v_cache, step.slots)


@needs_two_gpus
def test_work_goes_to_the_gpu_of_its_tensors() -> None:
    for device in (torch.device("cuda:1"), torch.device("cuda:0"), torch.device("cuda:1")):
        x, weight = torch.randn(20, 4096, device=device), torch.randn(4096, device=device)
        assert_close(rms_norm(x, weight, 1e-6), rms_norm_reference(x.double(), weight.double(), 1e-6))
    with pytest.raises(ValueError, match="on one device"):
        rms_norm(x, weight.to("cuda:0"), 1e-6)
