"""Penalties on a GPU against the CPU's: the same logits and the same counts, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.worker.cuda import needs_cuda
from tests.worker.penalty_rows import penalties_of, random_row
from worker.ops.penalties import PenaltyRow, count_drawn, penalize

pytestmark = needs_cuda
GPU = torch.device("cuda")


@pytest.mark.parametrize("vocab_size", [1, 2, 5, 31, 32, 33, 1000, 4099, 50257, 128256])
def test_the_same_as_on_the_cpu(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    rows = [random_row(rng, vocab_size) for _ in range(24)]
    logits = torch.from_numpy(rng.standard_normal((24, vocab_size)).astype(np.float32)) * 5
    logits[0, 0], logits[1, -1] = torch.nan, -torch.inf
    on_cpu, on_gpu = (penalties_of(rows, vocab_size, 3, device) for device in ("cpu", "cuda"))
    for _ in range(4):
        want, got = logits.clone(), logits.cuda()
        penalize(want, on_cpu)
        penalize(got, on_gpu)
        torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0, equal_nan=True)
        drawn = torch.from_numpy(rng.integers(-2, vocab_size, 24))
        count_drawn(on_cpu, drawn)
        count_drawn(on_gpu, drawn.cuda())
        assert torch.equal(on_gpu.rows.cpu(), on_cpu.rows)
        assert torch.equal(on_gpu.tokens.cpu(), on_cpu.tokens)


def test_logits_that_are_not_aligned_and_no_rows() -> None:
    rng = np.random.default_rng(0)
    rows = [random_row(rng, 1000) for _ in range(12)]
    flat = torch.randn(12 * 1000 + 1, generator=torch.Generator().manual_seed(2))
    on_gpu = flat.cuda()
    penalize(flat[1:].view(12, 1000), penalties_of(rows, 1000, 0))
    penalize(on_gpu[1:].view(12, 1000), penalties_of(rows, 1000, 0, GPU))
    assert torch.equal(on_gpu.cpu(), flat)
    nothing = penalties_of([], 1000, 0, GPU)
    penalize(on_gpu[:0].view(0, 1000), nothing)
    count_drawn(nothing, torch.empty(0, dtype=torch.int64, device=GPU))


def test_a_captured_graph_counts_as_it_goes() -> None:
    row = PenaltyRow(presence=1.0, min_tokens_left=2, end_ids=[3])
    penalties = penalties_of([row], 64, 3, GPU)
    logits, drawn = torch.zeros(1, 64, device=GPU), torch.zeros(1, dtype=torch.int64, device=GPU)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        penalize(logits, penalties)
        count_drawn(penalties, drawn)
    seen = []
    for token_id in (7, 5, 5):
        drawn.fill_(token_id)
        logits.zero_()
        graph.replay()
        seen.append(logits[0, [3, 5, 7]].tolist())
    assert seen == [[-torch.inf, 0, 0], [-torch.inf, 0, -1], [0, -1, -1]]
