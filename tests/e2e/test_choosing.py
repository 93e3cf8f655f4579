"""What a client may ask of how tokens are chosen, through three real processes."""

from __future__ import annotations

import asyncio
import math

import pytest

from tercet.client import Answer, AsyncClient

pytestmark = pytest.mark.e2e

PROMPT = "Once upon a time, there was a"


async def ask(client: AsyncClient, **options: object) -> Answer:
    return await client.generate(
        PROMPT, **{"temperature": 0.0, "max_tokens": 24, "ignore_eos": True, **options}
    ).answer()


async def test_a_frequency_penalty_ends_repetition(client: AsyncClient) -> None:
    plain = (await ask(client, max_tokens=80)).token_ids
    fresh = (await ask(client, max_tokens=80, frequency_penalty=2.0, presence_penalty=2.0)).token_ids
    assert len(set(fresh)) > len(set(plain))
    assert (await ask(client, max_tokens=80, frequency_penalty=-2.0)).token_ids != plain


async def test_only_allowed_tokens_come_and_a_bias_decides_between_them(client: AsyncClient) -> None:
    allowed = tuple([(await client.tokenize(word))[0] for word in (" yes", " no")])
    answer = await ask(client, temperature=5.0, seed=1, allowed_token_ids=allowed)
    assert set(answer.token_ids) == set(allowed)
    for wanted in allowed:
        answer = await ask(client, allowed_token_ids=allowed, logit_bias={wanted: 100.0})
        assert set(answer.token_ids) == {wanted}


async def test_no_end_before_min_tokens(client: AsyncClient) -> None:
    first = (await ask(client, max_tokens=1)).token_ids[0]
    stopped = await ask(client, stop_token_ids=(first,))
    assert len(stopped.token_ids) == 1
    later = await ask(client, stop_token_ids=(first,), min_tokens=10)
    assert first not in later.token_ids[:10]
    assert len(later.token_ids) >= 11


async def test_logprobs_are_the_same_however_they_are_asked_for(client: AsyncClient) -> None:
    plain = await ask(client)
    assert plain.outputs[0].logprobs == ()
    answer = await ask(client, logprobs=3)
    assert answer.token_ids == plain.token_ids
    (output,) = answer.outputs
    assert len(output.logprobs) == len(output.token_ids)
    for token_id, item in zip(output.token_ids, output.logprobs, strict=True):
        # Greedy: the likeliest.
        assert item.top[0] == (token_id, item.logprob)
        assert [value for _, value in item.top] == sorted((value for _, value in item.top), reverse=True)
        assert sum(math.exp(value) for _, value in item.top) <= 1.0 + 1e-6
    once = await client.generate_once(PROMPT, temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=3)
    assert once.outputs == answer.outputs
    # Of the logits as the model gave them, whatever is done to them, and at any temperature.
    first = await ask(client, temperature=2.0, seed=3, logit_bias={output.token_ids[0]: -100.0}, logprobs=3)
    assert first.token_ids[0] != output.token_ids[0]
    assert first.outputs[0].logprobs[0].top == output.logprobs[0].top


async def test_those_who_ask_and_those_who_do_not_run_together(client: AsyncClient) -> None:
    asked = [{}, {"logprobs": 1}, {"presence_penalty": 1.0}, {"n": 2, "temperature": 0.7, "seed": 5, "logprobs": 0}]
    alone = [await ask(client, **options) for options in asked]
    together = await asyncio.gather(*(ask(client, **options) for options in asked))
    assert [answer.outputs for answer in together] == [answer.outputs for answer in alone]
