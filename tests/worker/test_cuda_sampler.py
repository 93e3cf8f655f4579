"""Sampling on a GPU against the CPU's: the same tokens from the same logits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.worker.cuda import needs_cuda
from worker.ops.sampler import POSITION_OFFSET, SamplingRows, sample, sample_packed

pytestmark = needs_cuda
VOCABULARIES = [1, 2, 3, 5, 127, 1000, 4099, 32768, 49152, 50257, 128256, 151936]


def rows(num_rows: int, seed: int, **columns: float) -> SamplingRows:
    """Random settings, but for the columns that are given."""
    rng = np.random.default_rng(seed)
    settings = {
        "temperature": rng.choice([0.0, 0.3, 1.0, 1.0, 1.7], num_rows),
        "top_k": rng.choice([0, 0, 1, 2, 40, 1000, 30000], num_rows),
        "top_p": rng.choice([0.0, 0.1, 0.5, 0.95, 0.999, 1.0, 1.0], num_rows),
        "min_p": rng.choice([0.0, 0.0, 0.01, 0.3, 1.0], num_rows),
        "seed": rng.integers(0, 2**64, num_rows, dtype=np.uint64),
        "position": rng.integers(0, 2**40, num_rows),
    }
    settings |= {name: np.full(num_rows, value) for name, value in columns.items()}
    dtypes = {
        "temperature": np.float32, "top_k": np.int32, "top_p": np.float32, "min_p": np.float32, "seed": np.uint64,
        "position": np.int64,
    }  # fmt: skip
    return SamplingRows(**{name: values.astype(dtypes[name]) for name, values in settings.items()})


def check(logits: Tensor, settings: SamplingRows) -> None:
    """Of all rows, and of so few that several thread blocks share each."""
    want = sample(logits, settings).tolist()
    for num_rows in (len(logits), 3):
        few = SamplingRows(*(getattr(settings, name)[:num_rows] for name in SamplingRows.__dataclass_fields__))
        on_gpu = logits[:num_rows].cuda()
        torch.full((num_rows,), -7, device="cuda")  # poisons the memory of the result
        got = sample(on_gpu, few)
        assert got.dtype == torch.int64
        assert got.tolist() == want[:num_rows]


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 4.0, 30.0])
def test_the_same_tokens_as_on_the_cpu(vocab_size: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    check(torch.randn(24, vocab_size, generator=generator) * spread, rows(24, vocab_size))


@pytest.mark.parametrize("vocab_size", [7, 1000, 49152, 128255])
def test_many_equals(vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(1)
    coarse = torch.randint(0, 5, (24, vocab_size), generator=generator).float()
    check(coarse, rows(24, 3))
    check(coarse.bfloat16().float() * 0.5, rows(24, 4, temperature=1.0))
    check(torch.zeros(24, vocab_size), rows(24, 5, temperature=0.7, top_p=0.3, min_p=0.0))
    check(torch.zeros(24, vocab_size), rows(24, 6, temperature=0.7, top_k=5, top_p=1.0))


@pytest.mark.parametrize("top_k", [2, 64, 8191, 20000, 26000, 27000, 30000, 60000, 128255, 128256])
@pytest.mark.parametrize("top_p", [0.5, 0.999999, 1.0])
def test_more_candidates_than_shared_memory_has_room_for(top_k: int, top_p: float) -> None:
    logits = torch.randn(20, 128256, generator=torch.Generator().manual_seed(top_k))
    check(logits, rows(20, top_k, temperature=1.0, top_k=top_k, top_p=top_p))
    check(logits * 0.001, rows(20, top_k, temperature=1.0, top_k=top_k, top_p=top_p))


def test_minus_infinity_is_never_chosen_and_nothing_else_is_usable() -> None:
    logits = torch.randn(40, 5000, generator=torch.Generator().manual_seed(0))
    logits[torch.rand(logits.shape, generator=torch.Generator().manual_seed(1)) < 0.9] = -torch.inf
    check(logits, rows(40, 1))
    logits[3, 17] = torch.nan
    logits[5, 4999] = torch.inf
    logits[7] = -torch.inf
    logits[9, :-1] = -torch.inf
    logits[9, -1] = 1.5
    got = sample(logits.cuda(), rows(40, 2)).tolist()
    assert [got[b] for b in (3, 5, 7, 9)] == [-1, -1, -1, 4999]
    check(logits, rows(40, 2))


def test_a_row_depends_on_that_row_alone() -> None:
    logits = torch.randn(50, 49152, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    settings = rows(50, 9)
    together = sample(logits, settings)
    for b in (0, 13, 49):
        alone = SamplingRows(*(getattr(settings, name)[b : b + 1] for name in SamplingRows.__dataclass_fields__))
        assert sample(logits[b : b + 1], alone).item() == together[b].item()


def test_no_rows_and_rows_that_are_not_aligned() -> None:
    assert sample(torch.empty(0, 100, device="cuda"), rows(0, 0)).tolist() == []
    flat = torch.randn(12 * 1000 + 1, generator=torch.Generator().manual_seed(2))
    settings = rows(12, 0)
    on_gpu = flat.cuda()[1:].view(12, 1000)
    assert sample(on_gpu, settings).tolist() == sample(flat[1:].view(12, 1000), settings).tolist()


def test_draws_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625])
    settings = rows(20000, 0, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    chosen = sample(probabilities.log().expand(20000, 5).contiguous().cuda(), settings)
    shares = torch.bincount(chosen.cpu(), minlength=5) / 20000
    torch.testing.assert_close(shares, probabilities, atol=0.015, rtol=0)


def test_a_captured_graph_draws_by_what_the_params_have_become() -> None:
    logits = torch.randn(16, 50257, generator=torch.Generator().manual_seed(4))
    settings = rows(16, 11, position=100)
    params, on_gpu = torch.from_numpy(settings.packed()).cuda(), logits.cuda()
    sample_packed(on_gpu, params)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chosen = sample_packed(on_gpu, params)
    for position in (100, 101, 2**40):
        params[:, POSITION_OFFSET:].view(torch.int64).fill_(position)
        graph.replay()
        assert chosen.tolist() == sample(logits, replace(settings, position=np.full(16, position, np.int64))).tolist()
