"""Logprobs on a GPU against the CPU's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.worker.cuda import needs_cuda
from worker.ops.logprobs import MAX_TOP_LOGPROBS, logprobs

pytestmark = needs_cuda
VOCABULARIES = [1, 2, 3, 5, 20, 127, 1000, 4099, 32768, 50257, 128256, 151936]


def check(logits: Tensor, seed: int, num_top: int | None = None, width: int = MAX_TOP_LOGPROBS) -> None:
    """Of all rows, and of so few that several thread blocks share each. Ids are equal; so are logprobs, up to the last
    bit, where two libraries' logarithms differ."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(-2, logits.shape[1], (len(logits),), generator=generator)
    counts = torch.randint(-1, width + 1, (len(logits),), generator=generator, dtype=torch.int32)
    if num_top is not None:
        counts.fill_(num_top)
    for num_rows in (len(logits), 30, 3, 1):
        args = logits[:num_rows], chosen[:num_rows], counts[:num_rows]
        want = logprobs(*args, width)
        torch.full((num_rows, width), -7, device="cuda")  # poisons the memory of a result
        got = logprobs(*(x.cuda() for x in args), width)
        assert got.top_ids.tolist() == want.top_ids.tolist()
        for ours, theirs in ((got.chosen, want.chosen), (got.top_logprobs, want.top_logprobs)):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1.2e-7, atol=0, equal_nan=True)


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 4.0, 30.0])
def test_the_same_as_on_the_cpu(vocab_size: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    check(torch.randn(66, vocab_size, generator=generator) * spread, vocab_size)


@pytest.mark.parametrize("vocab_size", [7, 1000, 49152, 128255])
@pytest.mark.parametrize("num_top", [0, 1, 19, 20])
def test_many_equals(vocab_size: int, num_top: int) -> None:
    generator = torch.Generator().manual_seed(1)
    check(torch.randint(0, 5, (40, vocab_size), generator=generator).float(), 3, num_top)
    check(torch.zeros(40, vocab_size), 4, num_top)
    check(torch.randint(0, 60, (40, vocab_size), generator=generator).float() * 0.5, 5, num_top, 20)


def test_minus_infinity_and_rows_of_no_use() -> None:
    logits = torch.randn(40, 5000, generator=torch.Generator().manual_seed(0))
    logits[torch.rand(logits.shape, generator=torch.Generator().manual_seed(1)) < 0.9] = -torch.inf
    logits[3, 17] = torch.nan
    logits[5, 4999] = torch.inf
    logits[7] = -torch.inf
    logits[9], logits[9, 4999] = -torch.inf, 1.0
    check(logits, 1, 20)
    found = logprobs(logits.cuda(), torch.full((40,), 1).cuda(), torch.full((40,), 2, dtype=torch.int32).cuda(), 2)
    assert found.top_ids[[3, 5, 7]].tolist() == [[-1, -1]] * 3
    assert found.top_ids[9].tolist() == [4999, 0]
    assert found.chosen[[3, 5, 7]].isnan().all()


def test_logits_that_are_not_aligned_and_no_width() -> None:
    flat = torch.randn(40 * 1000 + 1, generator=torch.Generator().manual_seed(2))
    args = torch.zeros(40, dtype=torch.int64), torch.full((40,), 20, dtype=torch.int32)
    got = logprobs(flat.cuda()[1:].view(40, 1000), *(x.cuda() for x in args), 20)
    want = logprobs(flat[1:].view(40, 1000), *args, 20)
    assert got.top_ids.tolist() == want.top_ids.tolist()
    check(torch.randn(40, 300), 7, 0, width=0)
    assert logprobs(torch.empty(0, 100).cuda(), *(x[:0].cuda() for x in args), 3).top_ids.shape == (0, 3)
