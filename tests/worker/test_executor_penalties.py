"""Penalties in the executor: what was drawn counts wherever the steps were cut, and neighbours do not notice."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.recall_model import VOCAB_SIZE, RecallModel, continuation, next_token
from tests.worker.stepped_executor import SteppedExecutor, ended_of, tokens_of
from worker.messages import (
    Chunk,
    EndReason,
    Fork,
    NewSequence,
    Penalties,
    Release,
    ReleaseCause,
    Resume,
    Sampling,
)

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def expected(prompt: list[int], asked: Penalties, count: int, stops: frozenset[int] = frozenset()) -> list[int]:
    """The greedy tokens of the recall model by the definition, one after the other."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        x = torch.zeros(VOCAB_SIZE)
        x[next_token(tokens)] = 1.0
        drawn = tokens[asked.prompt_tokens :]
        for token_id in range(VOCAB_SIZE):
            x[token_id] += dict(asked.bias).get(token_id, 0.0)
            if token_id in tokens:
                x[token_id] *= 1 / asked.repetition if x[token_id] > 0 else asked.repetition
            if token_id in drawn:
                x[token_id] -= asked.frequency * drawn.count(token_id) + asked.presence
            if (asked.allowed_ids is not None and token_id not in asked.allowed_ids) or (
                token_id in stops and len(drawn) < asked.min_tokens
            ):
                x[token_id] = -math.inf
        tokens.append(int((x == x.max()).nonzero()[0]))
        if tokens[-1] in stops:
            break
    return tokens[len(prompt) :]


def sequence(asked: Penalties, count: int, token_ids: list[int] = PROMPT, **fields: Any) -> NewSequence:
    length = asked.prompt_tokens + count
    return NewSequence(1, tuple(token_ids), length, sampling=Sampling(penalties=asked), **fields)


@settings(max_examples=25, deadline=None)
@given(
    # Powers of two, so that the test's arithmetic is exact.
    repetition=st.sampled_from([1.0, 0.5, 2.0]),
    frequency=st.sampled_from([0.0, 0.25, -0.5]),
    presence=st.sampled_from([0.0, 2.0, -0.25]),
    bias=st.dictionaries(st.integers(0, VOCAB_SIZE - 1), st.sampled_from([0.5, -0.75, 1.5]), max_size=3),
    allowed=st.none() | st.sets(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 5), min_size=13, max_size=13),
)
def test_every_cut_gives_the_tokens_of_the_definition(
    repetition: float, frequency: float, presence: float, bias: dict[int, float], allowed: set[int] | None,
    cuts: list[int],
) -> None:  # fmt: skip
    asked = Penalties(
        len(PROMPT), repetition, frequency, presence, tuple(bias.items()), None if allowed is None else tuple(allowed)
    )
    bench = SteppedExecutor()
    events = bench.run(sequence(asked, 12), bench.plan(cuts[0], chunks=(Chunk(1, 5),), join=(1,)))
    events += bench.run(bench.plan(cuts[1], chunks=(Chunk(1, 99),)))
    for num_steps in cuts[2:]:
        events += bench.run(bench.plan(num_steps))
    assert tokens_of(events, 1) == expected(PROMPT, asked, 12)


def test_what_was_drawn_before_a_preemption_still_counts() -> None:
    asked = Penalties(len(PROMPT), repetition=2.0, frequency=0.5, min_tokens=9)
    want = expected(PROMPT, asked, 12)
    bench = SteppedExecutor()
    events = bench.run(sequence(asked, 12), bench.plan(5, chunks=(Chunk(1, 99),), join=(1,)))
    so_far = tokens_of(events, 1)
    bench.obey(Release((1,), ReleaseCause.PREEMPT))
    again = sequence(asked, 12, PROMPT + so_far)
    events += bench.run(again, bench.plan(20, chunks=(Chunk(1, 99),), join=(1,)))
    assert tokens_of(events, 1) == want


def test_a_swapped_sequence_goes_on_counting() -> None:
    asked = Penalties(len(PROMPT), presence=1.5)
    bench = SteppedExecutor(num_swap_blocks=16)
    events = bench.run(sequence(asked, 12), bench.plan(5, chunks=(Chunk(1, 99),), join=(1,)))
    bench.obey(Release((1,), ReleaseCause.SWAP))
    bench.obey(Resume((1,)))
    events += bench.run(bench.plan(20, join=(1,)))
    assert tokens_of(events, 1) == expected(PROMPT, asked, 12)


def test_no_stop_id_comes_before_its_time() -> None:
    stops = frozenset(continuation(PROMPT, 4)[:2]) | {10**9}
    for min_tokens in (0, 1, 5):
        asked = Penalties(len(PROMPT), min_tokens=min_tokens)
        want = expected(PROMPT, asked, 12, stops)
        bench = SteppedExecutor()
        events = bench.run(sequence(asked, 12, stop_token_ids=stops), bench.plan(30, chunks=(Chunk(1, 99),), join=(1,)))
        assert tokens_of(events, 1) == want
        assert len(want) > min_tokens
        assert (ended_of(events)[1].reason is EndReason.STOP) == (want[-1] in stops)


def test_forks_count_apart_and_neighbours_do_not_notice() -> None:
    asked = Penalties(len(PROMPT), frequency=1.0, presence=0.5)
    hot = Sampling(temperature=0.4, seed=5, penalties=asked)
    spec = NewSequence(1, tuple(PROMPT), len(PROMPT) + 10, sampling=hot, forks=(Fork(2, 6), Fork(3, 7)))
    texts = {}
    for key, seed in ((1, 5), (2, 6), (3, 7)):
        bench = SteppedExecutor()
        lone = NewSequence(key, tuple(PROMPT), len(PROMPT) + 10, sampling=Sampling(0.4, seed=seed, penalties=asked))
        texts[key] = tokens_of(bench.run(lone, bench.plan(10, chunks=(Chunk(key, 99),), join=(key,))), key)
    assert len(set(map(tuple, texts.values()))) == 3
    neighbour = NewSequence(4, (8, 8, 8), 20)
    bench = SteppedExecutor()
    chunks = (Chunk(4, 3), Chunk(1, 99))
    events = bench.run(spec, neighbour, bench.plan(20, chunks=chunks, join=(1, 4)))
    assert {key: tokens_of(events, key) for key in (1, 2, 3)} == texts
    assert tokens_of(events, 4) == continuation([8, 8, 8], 17)


@pytest.mark.parametrize("allowed", [(5,), (5, 6)])
def test_where_nothing_may_come_the_sequence_fails_alone(allowed: tuple[int, ...]) -> None:
    asked = Penalties(len(PROMPT), allowed_ids=allowed, min_tokens=3)
    bench = SteppedExecutor(model=RecallModel())
    spec = sequence(asked, 8, stop_token_ids=frozenset({5, 6}))
    events = bench.run(
        spec, NewSequence(4, (8, 8), 12), bench.plan(12, chunks=(Chunk(1, 99), Chunk(4, 9)), join=(1, 4))
    )
    assert ended_of(events)[1].reason is EndReason.FAILED
    assert tokens_of(events, 4) == continuation([8, 8], 10)
