"""Penalties, biases and bans: against their twin, against what they are defined to be, token by token."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.penalty_rows import penalties_of, random_row
from worker.ops.penalties import (
    Penalties,
    PenaltyCounts,
    PenaltyRow,
    count_drawn,
    count_drawn_reference,
    penalize,
    penalize_reference,
)


def penalized(logits: list[float], row: PenaltyRow, drawn: list[int] | None = None) -> list[float]:
    """The logits of one row after `drawn` was counted; the twin must agree to the bit."""
    results = []
    for count, change in ((count_drawn, penalize), (count_drawn_reference, penalize_reference)):
        x = torch.tensor([logits], dtype=torch.float32)
        penalties = penalties_of([row], len(logits), room=len(drawn or []))
        for token_id in drawn or []:
            count(penalties, torch.tensor([token_id]))
        change(x, penalties)
        results.append(x)
    assert torch.equal(*results)
    return results[0][0].tolist()


class TestPenalize:
    """What happens to a logit."""

    def test_nothing_asked_nothing_changed(self) -> None:
        row = PenaltyRow(prompt_ids=[0, 1], drawn_ids=[1, 2], end_ids=[3])
        assert penalized([1, -2, 3, 4], row) == [1, -2, 3, 4]

    def test_repetition_is_for_the_prompt_and_what_was_drawn(self) -> None:
        row = PenaltyRow(repetition=2, prompt_ids=[0, 1], drawn_ids=[2])
        assert penalized([1, -2, 3, 4, 0], row) == [0.5, -4, 1.5, 4, 0]
        assert penalized([8], PenaltyRow(repetition=2, prompt_ids=[0, 0], drawn_ids=[0, 0])) == [4], "once"

    def test_frequency_and_presence_are_for_what_was_drawn(self) -> None:
        row = PenaltyRow(frequency=0.5, prompt_ids=[0, 1], drawn_ids=[1, 1, 1, 2])
        assert penalized([1, 1, 1, 1], row) == [1, -0.5, 0.5, 1]
        row = PenaltyRow(presence=0.5, prompt_ids=[0, 1], drawn_ids=[1, 1, 1, 2])
        assert penalized([1, 1, 1, 1], row) == [1, 0.5, 0.5, 1]
        assert penalized([1], PenaltyRow(frequency=-1, presence=-2, drawn_ids=[0])) == [4]

    def test_bias_comes_first_and_may_ban(self) -> None:
        row = PenaltyRow(repetition=2, bias={0: 3, 1: -3, 2: -math.inf}, prompt_ids=[0, 1])
        assert penalized([1, 1, 1, 1], row) == [2, -4, -math.inf, 1]

    def test_ends_are_banned_until_enough_was_drawn(self) -> None:
        row = PenaltyRow(min_tokens_left=2, end_ids=[1, 3], bias={1: 100})
        banned = [0, -math.inf, 0, -math.inf]
        assert penalized([0] * 4, row) == banned
        assert penalized([0] * 4, row, drawn=[2]) == banned
        assert penalized([0] * 4, row, drawn=[2, -1]) == banned, "nothing was drawn"
        assert penalized([0] * 4, row, drawn=[2, 2]) == [0, 100, 0, 0]
        assert penalized([0] * 4, row, drawn=[2, 2, 2]) == [0, 100, 0, 0]

    def test_what_is_not_allowed_is_banned_whatever_it_is(self) -> None:
        row = PenaltyRow(allowed_ids=[1, 40], bias={2: 5}, frequency=1, drawn_ids=[40, 2])
        logits = [1.0] * 41
        logits[0] = math.nan
        want = [-math.inf] * 41
        want[1], want[40] = 1, 0
        assert penalized(logits, row) == want
        assert penalized([1] * 3, PenaltyRow(allowed_ids=[])) == [-math.inf] * 3

    def test_a_minus_infinity_stays_and_nan_stays(self) -> None:
        row = PenaltyRow(repetition=0.5, frequency=-2, presence=-2, bias={0: 9}, drawn_ids=[0, 1])
        got = penalized([-math.inf, -math.inf, 0], row)
        assert got == [-math.inf, -math.inf, 0]
        x = torch.tensor([[math.nan, 1.0]])
        penalize(x, penalties_of([row], 2, 0))
        assert x.isnan().tolist() == [[True, False]]


class TestCount:
    """What a row knows of what was drawn."""

    def test_drawn_one_by_one_is_as_if_listed(self) -> None:
        logits = [1.0, 2, -3, 4, 5, 6]
        how: dict[str, Any] = {"repetition": 1.5, "frequency": 0.5, "presence": 0.25, "prompt_ids": [1, 3]}
        drawn = [1, 1, 4, 0, 4, 4]
        want = penalized(logits, PenaltyRow(**how), drawn)
        assert penalized(logits, PenaltyRow(**how, drawn_ids=drawn)) == want
        counts = PenaltyCounts(PenaltyRow(**how), len(logits))
        counts.count(drawn[:2])
        counts.count(drawn[2:])
        x = torch.tensor([logits])
        penalize(x, Penalties.of([counts], len(logits), 0, torch.device("cpu")))
        assert x[0].tolist() == want

    def test_rows_count_apart(self) -> None:
        row = PenaltyRow(presence=1)
        penalties = penalties_of([row, row, PenaltyRow(), row], 5, 2)
        count_drawn(penalties, torch.tensor([0, 1, 2, -1]))
        count_drawn(penalties, torch.tensor([3, 1, 2, -2]))
        x = torch.zeros(4, 5)
        penalize(x, penalties)
        assert x.tolist() == [[-1, 0, 0, -1, 0], [0, -1, 0, 0, 0], [0] * 5, [0] * 5]

    def test_without_room_nothing_else_is_overwritten(self) -> None:
        row = PenaltyRow(presence=1, drawn_ids=[0])
        penalties = penalties_of([row, row], 4, 1)
        for token_id in (1, 2, 3):
            count_drawn(penalties, torch.tensor([token_id, 0]))
        x = torch.zeros(2, 4)
        penalize(x, penalties)
        assert x.tolist() == [[-1, -1, 0, 0], [-1, 0, 0, 0]]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_equals_its_twin(data: st.DataObject) -> None:
    vocab_size = data.draw(st.sampled_from([1, 2, 31, 32, 33, 100, 1000, 4097]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = [random_row(rng, vocab_size) for _ in range(data.draw(st.integers(0, 4)))]
    logits = torch.from_numpy(rng.standard_normal((len(rows), vocab_size)).astype(np.float32)) * 5
    ours, twins = (penalties_of(rows, vocab_size, 3) for _ in range(2))
    on_host = [PenaltyCounts(row, vocab_size) for row in rows]
    for _ in range(3):
        x, y, z = logits.clone(), logits.clone(), logits.clone()
        penalize(z, Penalties.of(on_host, vocab_size, 0, torch.device("cpu")))
        penalize(x, ours)
        penalize_reference(y, twins)
        assert torch.equal(x, y)
        assert torch.equal(x, z)
        drawn = torch.from_numpy(rng.integers(-2, vocab_size, len(rows)))
        count_drawn(ours, drawn)
        count_drawn_reference(twins, drawn)
        for row, token_id in zip(on_host, drawn.tolist(), strict=True):
            row.count([token_id] if token_id >= 0 else [])
        assert torch.equal(ours.rows, twins.rows)
        assert torch.equal(ours.tokens, twins.tokens)


class TestContract:
    """What the face refuses."""

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("repetition", 0), ("repetition", -1), ("repetition", math.inf), ("repetition", math.nan),
            ("repetition", 1e-60), ("frequency", math.inf), ("frequency", 1e39), ("presence", math.nan),
            ("bias", {1: math.inf}), ("bias", {1: math.nan}), ("min_tokens_left", -1),
        ],
    )  # fmt: skip
    def test_values_out_of_range(self, name: str, value: Any) -> None:
        with pytest.raises(ValueError, match=name):
            PenaltyRow(**{name: value})

    @pytest.mark.parametrize("token_id", [-1, 10, 2**40])
    def test_ids_out_of_range(self, token_id: int) -> None:
        for row in (
            PenaltyRow(bias={token_id: 1.0}),
            PenaltyRow(allowed_ids=[1, token_id]),
            PenaltyRow(repetition=2, prompt_ids=[token_id]),
            PenaltyRow(presence=1, drawn_ids=[2, token_id]),
            PenaltyRow(min_tokens_left=1, end_ids=[token_id]),
        ):
            with pytest.raises(ValueError, match="token ids must be from 0 to 9"):
                penalties_of([row], 10, 0)

    def test_tensors_that_do_not_fit(self) -> None:
        penalties = penalties_of([PenaltyRow(), PenaltyRow()], 4, 0)
        for logits in (
            torch.zeros(3, 4), torch.zeros(2, 5), torch.zeros(8), torch.zeros(2, 4, dtype=torch.float64),
            torch.zeros(2, 8)[:, ::2], torch.zeros(2, 4, device="meta"),
        ):  # fmt: skip
            for change in (penalize, penalize_reference):
                with pytest.raises(ValueError, match=r"logits|device"):
                    change(logits, penalties)
        for token_ids in (
            torch.zeros(1, dtype=torch.int64), torch.zeros(2), torch.zeros(4, dtype=torch.int64)[::2],
            torch.zeros(2, dtype=torch.int64, device="meta"),
        ):  # fmt: skip
            for count in (count_drawn, count_drawn_reference):
                with pytest.raises(ValueError, match="token_ids"):
                    count(penalties, token_ids)
