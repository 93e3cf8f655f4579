"""Token sequences that must not be generated: what is banned, at every moment, and in the logits."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.ops.bad_words import BadWords
from worker.ops.penalties import Penalties, PenaltyCounts, PenaltyRow, penalize

VOCAB_SIZE = 7
TOKENS = st.integers(0, VOCAB_SIZE - 1)


def banned_after(drawn: list[int], bad: list[list[int]]) -> set[int]:
    """The definition: the last token of each sequence whose others were drawn last."""
    return {
        each[-1] for each in bad if drawn[len(drawn) - len(each) + 1 :] == each[:-1] and len(each) <= len(drawn) + 1
    }


@settings(max_examples=200, deadline=None)
@given(
    bad=st.lists(st.lists(TOKENS, min_size=1, max_size=4), max_size=5),
    drawn=st.lists(TOKENS, max_size=12),
    cut=st.integers(0, 12),
)
def test_what_would_complete_one_is_banned(bad: list[list[int]], drawn: list[int], cut: int) -> None:
    words = BadWords(bad)
    words.push(drawn[:cut])
    for index, token_id in enumerate(drawn[cut:]):
        assert words.banned == banned_after(drawn[: cut + index], bad)
        words.push([token_id])
    assert words.banned == banned_after(drawn, bad)


@settings(max_examples=100, deadline=None)
@given(
    bad=st.lists(st.lists(TOKENS, min_size=1, max_size=3), min_size=1, max_size=4),
    bias=st.dictionaries(TOKENS, st.sampled_from([-1.0, 0.5, 2.0]), max_size=3),
    frequency=st.sampled_from([0.0, 0.5]),
    drawn=st.lists(TOKENS, min_size=1, max_size=8),
    cut=st.integers(0, 8),
)
def test_a_ban_comes_and_goes_and_leaves_all_else(
    bad: list[list[int]], bias: dict[int, float], frequency: float, drawn: list[int], cut: int
) -> None:
    row = PenaltyRow(bias=bias, frequency=frequency, drawn_ids=drawn[:cut], bad=bad)
    counts = PenaltyCounts(row, VOCAB_SIZE)
    for token_id in drawn[cut:]:
        counts.count([token_id])
    logits = torch.arange(VOCAB_SIZE, dtype=torch.float32)[None].clone()
    penalize(logits, Penalties.of([counts], VOCAB_SIZE, 0, torch.device("cpu")))
    banned = banned_after(drawn, bad)
    want = [-math.inf if i in banned else i + bias.get(i, 0.0) - frequency * drawn.count(i) for i in range(VOCAB_SIZE)]
    assert logits[0].tolist() == want


def test_a_sequence_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        BadWords([[1], []])
