"""Rows that take their first token from the step before, row by row, against the rule spelled out in plain Python."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from torch import Tensor

from worker.ops.commit import EMPTY, LIVE, NO_TOKEN, NOT_FINITE, NUM_STOP_IDS
from worker.ops.follow import NONE, FollowRows, follow_reference

VOCAB = 12


def random_followers(num_before: int, counts: Tensor) -> FollowRows:
    """Rows of so many tokens each, of which those that have one at least may follow a row of a step of `num_before`."""
    num_rows, num_tokens = len(counts), int(counts.sum())
    follows = torch.randint(-1, num_before, (num_rows,), dtype=torch.int32)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    stop_ids = torch.randint(0, VOCAB, (num_rows, NUM_STOP_IDS), dtype=torch.int32)
    stop_ids[:, 1:] = -1
    return FollowRows(
        follows=torch.where(counts > 0, follows, NONE).int(),
        query_starts=starts.int(),
        stop_ids=stop_ids,
        token_ids=torch.randint(100, 200, (num_tokens,)),
        slots=torch.randint(0, 99, (num_tokens,)),
        context_lens=torch.randint(1, 99, (num_rows,), dtype=torch.int32),
        status=torch.full((num_rows,), LIVE, dtype=torch.int32),
    )


@pytest.mark.parametrize("seed", range(30))
def test_a_row_takes_the_token_or_is_empty(seed: int) -> None:
    pick = random.Random(seed)
    torch.manual_seed(seed)
    num_before = pick.randrange(1, 9)
    rows = random_followers(num_before, torch.randint(0, 4, (pick.randrange(9),)))
    before = FollowRows(**{field.name: getattr(rows, field.name).clone() for field in dataclasses.fields(rows)})
    tokens = torch.tensor([pick.choice([NO_TOKEN, NOT_FINITE, *range(VOCAB)]) for _ in range(num_before)]).int()
    follow_reference(rows, tokens)
    expected_tokens, expected_slots = before.token_ids.tolist(), before.slots.tolist()
    for r, source in enumerate(before.follows.tolist()):
        if source == NONE:
            assert (rows.context_lens[r], rows.status[r]) == (before.context_lens[r], LIVE)
            continue
        token, place = int(tokens[source]), int(before.query_starts[r])
        ended = token < 0 or token == int(before.stop_ids[r, 0])
        expected_tokens[place] = 0 if ended else token
        if ended:
            expected_slots[place] = -1
            assert (rows.context_lens[r], rows.status[r]) == (0, EMPTY)
        else:
            assert (rows.context_lens[r], rows.status[r]) == (before.context_lens[r], LIVE)
    assert rows.token_ids.tolist() == expected_tokens
    assert rows.slots.tolist() == expected_slots


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("query_starts", torch.zeros(3, dtype=torch.int32)),
        ("stop_ids", torch.zeros(3, 1, dtype=torch.int32)),
        ("token_ids", torch.zeros(3, dtype=torch.int32)),
        ("slots", torch.zeros(4, dtype=torch.int64)),
        ("status", torch.zeros(6, dtype=torch.int32)[::2]),
        ("context_lens", torch.zeros(3, dtype=torch.int32, device="meta")),
    ],
)
def test_columns_that_do_not_fit_are_named(name: str, column: Tensor) -> None:
    rows = random_followers(2, torch.ones(3, dtype=torch.int64))
    with pytest.raises(ValueError, match=name):
        dataclasses.replace(rows, **{name: column})
