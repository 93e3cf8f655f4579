"""Logprobs: against their twin, against the log-softmax of float64, and the order of the likeliest."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from worker import _core
from worker.ops.logprobs import MAX_TOP_LOGPROBS, Logprobs, logprobs, logprobs_reference

INF = math.inf


def both(logits: Tensor, chosen_ids: list[int], num_top: list[int], width: int = MAX_TOP_LOGPROBS) -> Logprobs:
    """What is found; the twin must agree to the bit."""
    args = (logits, torch.tensor(chosen_ids, dtype=torch.int64), torch.tensor(num_top, dtype=torch.int32), width)
    found, want = logprobs(*args), logprobs_reference(*args)
    for name in ("chosen", "top_ids", "top_logprobs"):
        ours, twins = getattr(found, name), getattr(want, name)
        assert ours.dtype == twins.dtype
        torch.testing.assert_close(ours, twins, rtol=0, atol=0, equal_nan=True)
    return found


@pytest.mark.parametrize("vocab_size", [1, 2, 19, 20, 127, 128, 129, 5000, 50257])
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
def test_of_the_softmax_in_float64(vocab_size: int, spread: float) -> None:
    logits = torch.randn(3, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * spread
    want = logits.double().log_softmax(dim=1)
    chosen_ids = [0, vocab_size // 2, vocab_size - 1]
    found = both(logits, chosen_ids, [20, 3, 0])
    torch.testing.assert_close(found.chosen.double(), want[range(3), chosen_ids], rtol=3e-7, atol=3e-7)
    for row, count in enumerate((20, 3, 0)):
        count = min(count, vocab_size)
        values, ids = want[row].sort(descending=True, stable=True)
        assert found.top_ids[row].tolist() == ids[:count].tolist() + [-1] * (20 - count)
        torch.testing.assert_close(found.top_logprobs[row, :count].double(), values[:count], rtol=3e-7, atol=3e-7)
        assert found.top_logprobs[row, count:].isnan().all()


def test_the_lowest_id_is_first_among_equals() -> None:
    logits = torch.tensor([[0.0, 2, 1, 2, 1, 1, 0, 2]])
    assert both(logits, [0], [6]).top_ids[0, :6].tolist() == [1, 3, 7, 2, 4, 5]
    assert both(torch.zeros(1, 3000), [7], [20]).top_ids[0].tolist() == list(range(20))


def test_what_the_float_of_a_difference_cannot_tell_apart_is_equal() -> None:
    assert both(torch.tensor([[1e-9, 2e-9, 100.0]]), [2], [3]).top_ids[0, :3].tolist() == [2, 0, 1]


def test_masked_tokens_have_no_probability() -> None:
    found = both(torch.tensor([[-INF, 0, -INF, 0]]), [0], [3])
    assert found.chosen.tolist() == [-INF]
    assert found.top_ids[0, :3].tolist() == [1, 3, 0]
    torch.testing.assert_close(found.top_logprobs[0, :3], torch.tensor([-math.log(2), -math.log(2), -INF]))


def test_rows_that_do_not_ask_and_rows_of_no_use() -> None:
    logits = torch.zeros(5, 300)
    logits[1, 299] = math.nan
    logits[2, 0] = INF
    logits[3] = -INF
    found = both(logits, [0, 1, 2, -1, -1], [-1, 5, 5, 5, 2], width=5)
    assert found.chosen.isnan().all()
    assert found.top_ids.tolist() == [[-1] * 5] * 4 + [[0, 1, -1, -1, -1]]
    torch.testing.assert_close(found.top_logprobs[4, :2], torch.full((2,), -math.log(300)))


def test_no_rows_and_no_width() -> None:
    assert both(torch.zeros(0, 5), [], []).top_ids.shape == (0, 20)
    found = both(torch.zeros(1, 4), [3], [0], width=0)
    assert found.top_logprobs.shape == (1, 0)
    assert found.chosen.item() == pytest.approx(-math.log(4))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_equals_its_twin(data: st.DataObject) -> None:
    """On logits of every shape, with many ties and near-ties."""
    num_rows = data.draw(st.integers(1, 4))
    vocab_size = data.draw(st.sampled_from([1, 2, 3, 100, 127, 128, 129, 1000, 4097]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    logits = torch.randn(num_rows, vocab_size, generator=generator) * data.draw(st.sampled_from([0, 1e-6, 1, 4, 100]))
    logits[torch.rand(logits.shape, generator=generator) < data.draw(st.sampled_from([0, 0.5]))] = -INF
    if data.draw(st.booleans()):
        logits = logits.round()
    width = data.draw(st.integers(0, MAX_TOP_LOGPROBS))

    def column(low: int, high: int) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=num_rows, max_size=num_rows))

    both(logits, column(-2, vocab_size - 1), column(-1, width), width)


# Without torch, which takes longer to import than all the rest.
_EVERY_ISA = """
import numpy as np
from worker import _core
logits = (np.random.default_rng(1).standard_normal((8, 5000)) * 3).astype(np.float32)
chosen_ids, num_top = np.arange(8), np.full(8, 20, np.int32)
chosen, top_ids, top = np.zeros(8, np.float32), np.zeros((8, 20), np.int64), np.zeros((8, 20), np.float32)
_core.logprobs(
    logits.ctypes.data, 8, 5000, chosen_ids.ctypes.data, num_top.ctypes.data, 20, chosen.ctypes.data,
    top_ids.ctypes.data, top.ctypes.data,
)
print(chosen.tolist(), top_ids.tolist(), top.tolist())
"""


def test_every_instruction_set_finds_the_same() -> None:
    names = ["portable", "avx2", "avx512", "avx512bf16"]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", _EVERY_ISA], env={**os.environ, "TERCET_ISA": isa}, capture_output=True, check=True
        ).stdout
        for isa in names[: names.index(_core.isa()) + 1]
    }
    assert len(outputs) == 1
    assert outputs.pop().count(b",") > 300


def test_what_does_not_fit_is_refused() -> None:
    logits, ids, num_top = torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int32)
    for wrong in (
        (logits.double(), ids, num_top, 5), (logits[:, :0], ids, num_top, 5), (logits[:, ::2], ids, num_top, 5),
        (logits, ids[:1], num_top, 5), (logits, ids.int(), num_top, 5), (logits, ids, num_top.long(), 5),
        (logits, ids, num_top, 21), (logits, ids, num_top, -1), (logits, ids.to("meta"), num_top, 5),
    ):  # fmt: skip
        for function in (logprobs, logprobs_reference):
            with pytest.raises(ValueError, match=r"logits|chosen_ids|num_top|width"):
                function(*wrong)
