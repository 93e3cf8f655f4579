"""Every sampling parameter through three real processes: the same streamed or at once, alone or in a batch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tercet.client import Answer, AsyncClient, Output

pytestmark = pytest.mark.e2e

PROMPT = "Once upon a time, there was a"
HOT = {"temperature": 0.9, "seed": 11}
# An end token of the model.
END = 2
MATRIX: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 1.3, "seed": 5},
    "top_k": {**HOT, "top_k": 4},
    "top_p": {**HOT, "top_p": 0.7},
    "min_p": {**HOT, "min_p": 0.1},
    "repetition_penalty": {**HOT, "repetition_penalty": 1.4},
    "frequency_penalty": {**HOT, "frequency_penalty": 0.8},
    "presence_penalty": {**HOT, "presence_penalty": -0.5},
    "logit_bias": {**HOT, "logit_bias": {260: 4.0, 253: -3.0}},
    "allowed_token_ids": {**HOT, "allowed_token_ids": tuple(range(200, 900))},
    "bad_words": {**HOT, "bad_words": ("the", "little girl", ",")},
    "min_tokens": {**HOT, "stop_token_ids": tuple(range(250, 300)), "min_tokens": 9},
    "stop": {**HOT, "stop": ("the", "a ")},
    "include_stop_string": {**HOT, "stop": ("the", "a "), "include_stop_string": True},
    "ends": {**HOT, "ignore_eos": False, "logit_bias": {END: 12.0}},
    "ignore_eos": {**HOT, "logit_bias": {END: 12.0}},
    "n": {**HOT, "n": 3},
    "logprobs": {**HOT, "logprobs": 3},
    "prompt_logprobs": {**HOT, "prompt_logprobs": 2},
    "all": {
        **HOT, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1, "frequency_penalty": 0.2,
        "presence_penalty": 0.1, "logit_bias": {260: 1.0}, "bad_words": ("the",), "min_tokens": 3, "n": 2,
        "logprobs": 2, "prompt_logprobs": 1, "stop": ("zzz",),
    },
}  # fmt: skip


def options_of(name: str) -> dict[str, Any]:
    return {"max_tokens": 24, "ignore_eos": True, **MATRIX[name]}


async def streamed(client: AsyncClient, name: str) -> Answer:
    return await client.generate(PROMPT, **options_of(name)).answer()


def results(answer: Answer) -> tuple[tuple[Output, ...], Any]:
    return answer.outputs, answer.prompt_logprobs


async def test_the_same_streamed_or_at_once_alone_or_in_a_batch(client: AsyncClient) -> None:
    alone = {name: await streamed(client, name) for name in MATRIX}
    for name, answer in alone.items():
        once = await client.generate_once(PROMPT, **options_of(name))
        assert results(once) == results(answer), name
    # Each with all others, and twice, so that one finds in the prefix cache what the other one left there.
    together = await asyncio.gather(*(streamed(client, name) for _ in range(2) for name in MATRIX))
    for name, answer in zip([*MATRIX, *MATRIX], together, strict=True):
        assert results(answer) == results(alone[name]), name
    # None of them is there for nothing.
    plain = (await client.generate(PROMPT, max_tokens=24, ignore_eos=True, **HOT).answer()).outputs[0]
    for name, answer in alone.items():
        if name not in ("n", "logprobs", "prompt_logprobs"):
            assert answer.outputs[0] != plain, name
    assert (alone["ends"].outputs[0].finish_reason, alone["ignore_eos"].outputs[0].finish_reason) == ("stop", "length")
    assert alone["n"].outputs[0] == plain
    assert alone["n"].outputs[1] != plain
    assert alone["logprobs"].outputs[0].token_ids == plain.token_ids
    assert all(len(each.top) == 3 for each in alone["logprobs"].outputs[0].logprobs)


async def test_bad_words_do_not_come(client: AsyncClient) -> None:
    plain = await client.generate(PROMPT, max_tokens=60, temperature=0.0, ignore_eos=True).answer()
    words = tuple(dict.fromkeys(word for word in plain.text.split() if word.isalpha()))[:12]
    answer = await client.generate(
        PROMPT, max_tokens=60, temperature=0.0, ignore_eos=True, bad_words=words
    ).answer()  # fmt: skip
    bad = [await client.tokenize(space + word) for word in words for space in ("", " ")]
    ids = list(answer.token_ids)
    for each in bad:
        assert not any(ids[at : at + len(each)] == list(each) for at in range(len(ids))), each


async def test_an_included_stop_string_is_where_the_other_one_ends(client: AsyncClient) -> None:
    (without,), (with_it,) = [(await streamed(client, name)).outputs for name in ("stop", "include_stop_string")]
    assert (without.stop, without.token_ids) == (with_it.stop, with_it.token_ids)
    assert with_it.text == without.text + str(with_it.stop)


async def test_logprobs_of_a_prompt_are_those_of_the_same_text_when_it_was_generated(client: AsyncClient) -> None:
    prompt = await client.tokenize(PROMPT)
    made = await client.generate(prompt, max_tokens=40, logprobs=3, ignore_eos=True, **HOT).answer()
    text = [*prompt, *made.token_ids]
    read = await client.generate(text, max_tokens=1, prompt_logprobs=3, temperature=0.0).answer()
    assert read.prompt_logprobs is not None
    assert [text[0], *read.prompt_logprobs.token_ids] == text
    assert read.finished.usage.cached_tokens == 0
    assert len(read.prompt_logprobs.logprobs) == len(text) - 1
    again = read.prompt_logprobs.logprobs[len(prompt) - 1 :]
    for one, other in zip(made.outputs[0].logprobs, again, strict=True):
        assert other.logprob == pytest.approx(one.logprob, abs=1e-4)
        assert [value for _, value in other.top] == pytest.approx([value for _, value in one.top], abs=1e-4)
