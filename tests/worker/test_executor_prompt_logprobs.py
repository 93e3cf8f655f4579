"""Logprobs of prompts: each place once, whatever the chunks, the cache and the neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.recall_model import VOCAB_SIZE, RecallModel, continuation, next_token
from tests.worker.stepped_executor import SteppedExecutor, ended_of, steps_of, tokens_of
from worker.messages import (
    Chunk,
    EndReason,
    Event,
    Fork,
    NewSequence,
    Penalties,
    PromptLogprobs,
    Release,
    ReleaseCause,
    Sampling,
)
from worker.prompt_logprobs import PLACES_AT_A_TIME

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
# The model gives one token a logit of 1 and the others 0.
TOTAL = math.e + VOCAB_SIZE - 1
LIKELY, OTHER = 1 - math.log(TOTAL), -math.log(TOTAL)


def sequence(key: int, prompt: list[int] = PROMPT, count: int = 3, **sampling: Any) -> NewSequence:
    return NewSequence(key, tuple(prompt), len(prompt) + count, sampling=Sampling(**sampling))


def parts_of(events: Iterable[Event], key: int) -> list[PromptLogprobs]:
    return [part for step in steps_of(events) for part in step.prompt_logprobs if part.sequence_id == key]


def check(prompt: list[int], parts: list[PromptLogprobs], num_top: int) -> None:
    """All places but the first, in order, once."""
    place = 1
    for part in parts:
        assert part.first == place
        assert 0 < len(part.logprobs) <= PLACES_AT_A_TIME
        assert len(part.top_ids) == len(part.top_logprobs) == num_top * len(part.logprobs)
        for index, logprob in enumerate(part.logprobs):
            likeliest = next_token(prompt[:place])
            others = [i for i in range(VOCAB_SIZE) if i != likeliest][: max(0, num_top - 1)]
            tops = slice(index * num_top, (index + 1) * num_top)
            assert list(part.top_ids[tops]) == [likeliest, *others][:num_top]
            assert list(part.top_logprobs[tops]) == pytest.approx([LIKELY, *(OTHER for _ in others)][:num_top])
            assert logprob == pytest.approx(LIKELY if prompt[place] == likeliest else OTHER)
            place += 1
    assert place == len(prompt)


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.lists(st.integers(1, 5), min_size=len(PROMPT), max_size=len(PROMPT)),
    num_top=st.sampled_from([0, 1, 20]),
    captured=st.none() | st.integers(0, 3),
)
def test_every_cut_of_the_prompt_gives_each_place_once(cuts: list[int], num_top: int, captured: int | None) -> None:
    bench = SteppedExecutor(captured=captured)
    neighbour = NewSequence(9, (8, 8, 8), 40)
    events = bench.run(
        sequence(1, num_prompt_logprobs=num_top), neighbour, bench.plan(1, chunks=(Chunk(9, 3),), join=(9,))
    )
    for count in cuts:
        events += bench.run(bench.plan(1, chunks=(Chunk(1, count),)))
    events += bench.run(bench.plan(9, join=(1,)))
    check(PROMPT, parts_of(events, 1), num_top)
    assert tokens_of(events, 1) == continuation(PROMPT, 3)
    assert tokens_of(events, 9) == continuation([8, 8, 8], 37)[: len(tokens_of(events, 9))]
    assert not parts_of(events, 9)


def test_a_long_prompt_comes_in_pieces() -> None:
    prompt = [(7 * i) % VOCAB_SIZE for i in range(3 * PLACES_AT_A_TIME + 5)]
    bench = SteppedExecutor(num_blocks=128)
    events = bench.run(
        sequence(1, prompt, num_prompt_logprobs=2), bench.plan(5, chunks=(Chunk(1, len(prompt)),), join=(1,))
    )
    parts = parts_of(events, 1)
    check(prompt, parts, 2)
    assert [len(part.logprobs) for part in parts] == [PLACES_AT_A_TIME] * 3 + [4]


def test_what_the_cache_has_is_computed_and_is_there_for_others() -> None:
    bench = SteppedExecutor()
    chunk = bench.plan(4, chunks=(Chunk(1, 99),), join=(1,))
    bench.run(sequence(1), chunk)
    events = bench.run(sequence(2, num_prompt_logprobs=1), bench.plan(4, chunks=(Chunk(2, 99),), join=(2,)))
    check(PROMPT, parts_of(events, 2), 1)
    assert [item.num_cached for step in steps_of(events) for item in step.prefills] == [0]
    events = bench.run(sequence(3), bench.plan(4, chunks=(Chunk(3, 99),), join=(3,)))
    assert [item.num_cached for step in steps_of(events) for item in step.prefills] == [8]


def test_a_preemption_in_mid_prompt_begins_again() -> None:
    bench = SteppedExecutor()
    spec = sequence(1, num_prompt_logprobs=1)
    events = bench.run(spec, bench.plan(1, chunks=(Chunk(1, 5),)))
    assert [part.first for part in parts_of(events, 1)] == [1]
    bench.obey(Release((1,), ReleaseCause.PREEMPT))
    events = bench.run(spec, bench.plan(4, chunks=(Chunk(1, 99),), join=(1,)))
    check(PROMPT, parts_of(events, 1), 1)


def test_a_prompt_is_that_of_its_forks_too() -> None:
    spec = NewSequence(
        1, tuple(PROMPT), len(PROMPT) + 4, sampling=Sampling(0.4, seed=5, num_logprobs=0, num_prompt_logprobs=1),
        forks=(Fork(2, 6), Fork(3, 7)),
    )  # fmt: skip
    bench = SteppedExecutor()
    events = bench.run(spec, bench.plan(2, chunks=(Chunk(1, 6),)))
    events += bench.run(bench.plan(6, chunks=(Chunk(1, 99),), join=(1,)))
    check(PROMPT, parts_of(events, 1), 1)
    assert not parts_of(events, 2) + parts_of(events, 3)
    assert [len(tokens_of(events, key)) for key in (1, 2, 3)] == [4, 4, 4]


def test_they_are_of_the_logits_before_penalties() -> None:
    asked = Penalties(len(PROMPT), repetition=2.0, bias=((7, 9.0),))
    bench = SteppedExecutor()
    spec = sequence(1, temperature=3.0, seed=4, penalties=asked, num_prompt_logprobs=3)
    check(PROMPT, parts_of(bench.run(spec, bench.plan(4, chunks=(Chunk(1, 99),), join=(1,))), 1), 3)


def test_logits_that_are_not_finite_end_the_sequence_and_no_other() -> None:
    bench = SteppedExecutor(model=RecallModel(nan_on=5))
    events = bench.run(
        sequence(1, num_prompt_logprobs=0), sequence(2, [8, 8, 8], num_prompt_logprobs=0),
        bench.plan(1, chunks=(Chunk(1, 7), Chunk(2, 3)), join=(1, 2)),
    )  # fmt: skip
    assert ended_of(events)[1].reason is EndReason.FAILED
    assert not parts_of(events, 1)
    check([8, 8, 8], parts_of(events, 2), 0)


def test_a_prompt_of_one_token_has_none() -> None:
    bench = SteppedExecutor()
    events = bench.run(sequence(1, [3], num_prompt_logprobs=5), bench.plan(4, chunks=(Chunk(1, 9),), join=(1,)))
    assert not parts_of(events, 1)
    assert tokens_of(events, 1) == continuation([3], 3)
