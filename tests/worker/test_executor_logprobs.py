"""Logprobs of the executor's tokens: of the logits as the model gave them, for those alone that ask."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.worker.recall_model import VOCAB_SIZE, continuation, next_token
from tests.worker.stepped_executor import SteppedExecutor, alone, ended_of, steps_of, tokens_of
from worker.messages import Chunk, EndReason, Fork, NewSequence, Penalties, Sampling, TokenLogprobs

PROMPT = [3, 1, 4, 1, 5]
# The model gives one token a logit of 1 and the others 0.
TOTAL = math.e + VOCAB_SIZE - 1
LIKELY, OTHER = 1 - math.log(TOTAL), -math.log(TOTAL)


def sequence(key: int, count: int = 6, **sampling: Any) -> NewSequence:
    return NewSequence(key, tuple(PROMPT), len(PROMPT) + count, sampling=Sampling(**sampling))


def check(prompt: list[int], tokens: list[int], found: list[TokenLogprobs], num_top: int) -> None:
    for index, item in enumerate(found):
        likeliest = next_token(prompt + tokens[:index])
        others = [i for i in range(VOCAB_SIZE) if i != likeliest][: max(0, num_top - 1)]
        assert list(item.top_ids) == [likeliest, *others][:num_top]
        assert item.logprob == pytest.approx(LIKELY if tokens[index] == likeliest else OTHER)
        assert list(item.top_logprobs) == pytest.approx([LIKELY, *(OTHER for _ in others)][:num_top])


@pytest.mark.parametrize("num_top", [0, 1, 5, 20])
@pytest.mark.parametrize("num_steps", [1, 10])
def test_each_token_has_its_own(num_top: int, num_steps: int) -> None:
    bench = SteppedExecutor()
    chunk = (Chunk(1, 99), Chunk(2, 99))
    events = bench.run(sequence(1, num_logprobs=num_top), sequence(2), bench.plan(num_steps, chunks=chunk, join=(1, 2)))
    while len(ended_of(events)) < 2:
        events += bench.run(bench.plan(num_steps))
    found = [item for step in steps_of(events) for item in step.logprobs]
    assert [key for key, _ in found] == [1] * 6
    assert tokens_of(events, 1) == tokens_of(events, 2) == continuation(PROMPT, 6)
    check(PROMPT, tokens_of(events, 1), [item for _, item in found], num_top)


def test_they_are_of_the_logits_before_penalties_and_temperature() -> None:
    asked = Penalties(len(PROMPT), frequency=2.0, bias=((7, 1.5),))
    spec = sequence(1, 9, temperature=3.0, seed=4, penalties=asked, num_logprobs=2)
    bench = SteppedExecutor()
    events = bench.run(spec, bench.plan(9, chunks=(Chunk(1, 99),), join=(1,)))
    tokens = tokens_of(events, 1)
    assert tokens != continuation(PROMPT, 9)
    check(PROMPT, tokens, [item for step in steps_of(events) for _, item in step.logprobs], 2)


def test_forks_have_theirs_from_the_first_token_on() -> None:
    sampling = Sampling(temperature=0.4, seed=5, num_logprobs=1)
    spec = NewSequence(1, tuple(PROMPT), len(PROMPT) + 4, sampling=sampling, forks=(Fork(2, 6), Fork(3, 7)))
    bench = SteppedExecutor()
    events = bench.run(spec, bench.plan(4, chunks=(Chunk(1, 99),), join=(1,)))
    for key in (1, 2, 3):
        found = [item for step in steps_of(events) for owner, item in step.logprobs if owner == key]
        tokens = tokens_of(events, key)
        assert len(found) == len(tokens) == 4
        check(PROMPT, tokens, found, 1)
        lone = sequence(key, 4, temperature=0.4, seed=4 + key)
        assert tokens == alone(lone)


def test_a_sequence_that_fails_takes_no_logprobs_from_others() -> None:
    bench = SteppedExecutor()
    # It may choose nothing, and so has no token.
    stuck = NewSequence(
        1, (2, 2), 9, frozenset({5}), Sampling(penalties=Penalties(2, allowed_ids=(5,), min_tokens=1), num_logprobs=3)
    )
    events = bench.run(
        stuck, sequence(2, num_logprobs=0), bench.plan(6, chunks=(Chunk(1, 9), Chunk(2, 9)), join=(1, 2))
    )
    assert ended_of(events)[1].reason is EndReason.FAILED
    found = [item for step in steps_of(events) for item in step.logprobs]
    assert [key for key, _ in found] == [2] * 6
    check(PROMPT, tokens_of(events, 2), [item for _, item in found], 0)
