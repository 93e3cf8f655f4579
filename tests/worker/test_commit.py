"""The end of a step, row by row, against its rules spelled out in plain Python."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from torch import Tensor

from worker.ops.commit import EMPTY, LIVE, NO_TOKEN, NOT_FINITE, NUM_STOP_IDS, CommitRows, commit_reference
from worker.ops.sampler import PARAMS_BYTES, POSITION_OFFSET

VOCAB = 12


def random_rows(pick: random.Random, num_rows: int, width: int, block_size: int) -> CommitRows:
    """Rows of any state; a live one's next position lies within its table, or just behind it with its last token."""
    live = [pick.random() < 0.8 for _ in range(num_rows)]
    positions = [pick.randrange(width * block_size) for _ in range(num_rows)]
    room = [width * block_size - position for position in positions]
    remaining = [pick.randrange(1, room + 1) if pick.random() < 0.5 else room for room in room]
    stop_ids = torch.full((num_rows, NUM_STOP_IDS), -1, dtype=torch.int32)
    for row in stop_ids:
        count = pick.randrange(4)
        row[:count] = torch.tensor(pick.sample(range(VOCAB), count), dtype=torch.int32)
    columns = torch.tensor(positions, dtype=torch.int64)
    alive = torch.tensor(live, dtype=torch.bool)
    params = torch.randint(0, 256, (num_rows, PARAMS_BYTES), dtype=torch.uint8)
    params.view(torch.int64)[:, POSITION_OFFSET // 8] = columns + 1
    return CommitRows(
        token_ids=torch.randint(0, VOCAB, (num_rows + pick.randrange(3),)),
        positions=torch.cat([columns, torch.zeros(pick.randrange(3), dtype=torch.int64)]),
        slots=torch.randint(0, 99, (num_rows,)),
        context_lens=torch.where(alive, columns + 1, 0).int(),
        block_tables=torch.randint(0, 1000, (num_rows, width), dtype=torch.int32),
        params=params,
        status=alive.int(),
        remaining=torch.tensor(remaining, dtype=torch.int32),
        stop_ids=stop_ids,
    )


def random_tokens(pick: random.Random, num_rows: int) -> Tensor:
    return torch.tensor([pick.choice([-1, *range(VOCAB)]) for _ in range(num_rows)], dtype=torch.int64)


def clone(rows: CommitRows) -> CommitRows:
    return CommitRows(**{field.name: getattr(rows, field.name).clone() for field in dataclasses.fields(rows)})


@pytest.mark.parametrize("seed", range(40))
def test_a_row_takes_its_token_and_moves_on_or_ends(seed: int) -> None:
    pick = random.Random(seed)
    torch.manual_seed(seed)
    num_rows, width, block_size = pick.randrange(9), pick.randrange(1, 5), pick.choice([1, 4, 16])
    rows = random_rows(pick, num_rows, width, block_size)
    before, sampled = clone(rows), random_tokens(pick, num_rows)
    record = commit_reference(sampled, rows, block_size)
    assert record.dtype == torch.int32
    assert record.shape == (num_rows,)
    for r, token in enumerate(sampled.tolist()):
        was_live = before.status[r] == LIVE
        if not was_live:
            assert record[r] == NO_TOKEN
            assert rows.remaining[r] == before.remaining[r]
        else:
            assert record[r] == (token if token >= 0 else NOT_FINITE)
            assert rows.remaining[r] == before.remaining[r] - 1
        goes_on = was_live and token >= 0 and token not in before.stop_ids[r].tolist() and before.remaining[r] > 1
        position = int(before.positions[r]) + 1
        if not goes_on:
            assert (rows.status[r], rows.context_lens[r], rows.slots[r]) == (EMPTY, 0, -1)
            continue
        assert (rows.status[r], rows.token_ids[r], rows.positions[r]) == (LIVE, token, position)
        assert rows.context_lens[r] == before.context_lens[r] + 1 == position + 1
        block = int(before.block_tables[r, position // block_size])
        assert rows.slots[r] == block * block_size + position % block_size
        grown = rows.params[r].view(torch.int64) - before.params[r].view(torch.int64)
        assert grown.tolist() == [i == POSITION_OFFSET // 8 for i in range(PARAMS_BYTES // 8)]
    assert torch.equal(rows.token_ids[num_rows:], before.token_ids[num_rows:])


def test_a_row_without_room_for_a_next_token_has_no_slot() -> None:
    rows = random_rows(random.Random(0), 1, 2, 4)
    rows.status[0], rows.positions[0], rows.remaining[0], rows.stop_ids[0] = LIVE, 7, 9, -1
    commit_reference(torch.tensor([3]), rows, 4)
    assert (rows.status[0], rows.positions[0], rows.slots[0]) == (LIVE, 8, -1)


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("token_ids", torch.zeros(2, dtype=torch.int64)),
        ("positions", torch.zeros(3, dtype=torch.int32)),
        ("slots", torch.zeros(6, dtype=torch.int64)[::2]),
        ("context_lens", torch.zeros(4, dtype=torch.int32)),
        ("block_tables", torch.zeros(3, dtype=torch.int32)),
        ("block_tables", torch.zeros(3, 0, dtype=torch.int32)),
        ("params", torch.zeros(3, PARAMS_BYTES - 1, dtype=torch.uint8)),
        ("status", torch.zeros(3, dtype=torch.bool)),
        ("remaining", torch.zeros(3, 1, dtype=torch.int32)),
        ("stop_ids", torch.zeros(3, NUM_STOP_IDS + 1, dtype=torch.int32)),
        ("slots", torch.zeros(3, dtype=torch.int64, device="meta")),
    ],
)
def test_columns_that_do_not_fit_are_named(name: str, column: Tensor) -> None:
    rows = random_rows(random.Random(0), 3, 2, 4)
    with pytest.raises(ValueError, match=name):
        dataclasses.replace(rows, **{name: column})


def test_tokens_that_do_not_fit_are_refused() -> None:
    rows = random_rows(random.Random(0), 3, 2, 4)
    for sampled in (torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.int32), torch.zeros(6).long()[::2]):
        with pytest.raises(ValueError, match="sampled"):
            commit_reference(sampled, rows, 4)
    with pytest.raises(ValueError, match="block_size"):
        commit_reference(torch.zeros(3, dtype=torch.int64), rows, 0)
