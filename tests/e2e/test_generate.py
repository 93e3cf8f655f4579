"""Text through three real processes."""

from __future__ import annotations

import asyncio

import pytest

from tercet.client import Accepted, Answer, AsyncClient, ChatMessage, Delta, Finished

pytestmark = pytest.mark.e2e

QUESTION = [ChatMessage("user", "What is the capital of France?")]


async def test_the_capital_of_france(client: AsyncClient) -> None:
    events = [event async for event in client.generate(QUESTION, temperature=0.0, max_tokens=32)]
    assert isinstance(events[0], Accepted)
    assert isinstance(events[-1], Finished)
    deltas = events[1:-1]
    assert all(isinstance(event, Delta) for event in deltas)
    text = "".join(event.text for event in deltas if isinstance(event, Delta))
    assert "Paris" in text
    usage = events[-1].usage
    assert events[-1].finish_reason == "stop"
    assert usage.prompt_tokens == events[0].prompt_tokens > 0
    assert usage.completion_tokens == sum(len(event.token_ids) for event in deltas if isinstance(event, Delta))
    assert usage.kv_blocks_used > 0


async def test_tokens_arrive_one_by_one(client: AsyncClient) -> None:
    deltas = [
        event
        async for event in client.generate("Once upon a time", temperature=0.0, max_tokens=24, ignore_eos=True)
        if isinstance(event, Delta)
    ]
    # A reader that keeps up gets a delta a step; the machine may be busy, so ask only that it is no single burst.
    assert len(deltas) >= 6


async def test_streamed_equals_unary(client: AsyncClient) -> None:
    options = {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "seed": 7, "max_tokens": 40}
    streamed = await client.generate("The three laws of robotics are", **options).answer()
    unary = await client.generate_once("The three laws of robotics are", **options)
    assert (streamed.text, streamed.token_ids) == (unary.text, unary.token_ids)
    assert streamed.finished.finish_reason == unary.finished.finish_reason


async def test_text_and_token_input_agree(client: AsyncClient) -> None:
    text = "def fibonacci(n):"
    token_ids = await client.tokenize(text)
    by_text = await client.generate_once(text, temperature=0.0, max_tokens=16)
    by_ids = await client.generate_once(token_ids, temperature=0.0, max_tokens=16)
    assert by_text.token_ids == by_ids.token_ids
    assert await client.detokenize(token_ids) == text


async def test_32_clients_at_once_get_what_each_would_get_alone(client: AsyncClient) -> None:
    prompts = [f"Count from {first}: {first}, {first + 1}," for first in range(32)]

    async def ask(prompt: str, seed: int) -> Answer:
        return await client.generate(prompt, temperature=0.7, seed=seed, max_tokens=16 + seed % 9).answer()

    together = await asyncio.gather(*(ask(prompt, seed) for seed, prompt in enumerate(prompts)))
    for seed in (0, 13, 31):
        alone = await ask(prompts[seed], seed)
        assert alone.token_ids == together[seed].token_ids
    assert len({answer.accepted.request_id for answer in together}) == 32


async def test_stop_string_split_over_tokens(client: AsyncClient) -> None:
    free = await client.generate_once("Once upon a time", temperature=0.0, max_tokens=40, ignore_eos=True)
    # A piece from the middle of the text that starts and ends inside words, so inside or across tokens.
    start = len(free.text) // 2
    stop = free.text[start : start + 9]
    stopped = await client.generate("Once upon a time", temperature=0.0, max_tokens=40, stop=(stop,)).answer()
    assert stopped.text == free.text[: free.text.index(stop)]
    assert stopped.finished.finish_reason == "stop"
    assert stopped.finished.stop == stop
    assert stopped.token_ids == free.token_ids[: len(stopped.token_ids)]


async def test_stop_token_id(client: AsyncClient) -> None:
    free = await client.generate_once("Once upon a time", temperature=0.0, max_tokens=20, ignore_eos=True)
    stop = free.token_ids[5]
    stopped = await client.generate_once("Once upon a time", temperature=0.0, max_tokens=20, stop_token_ids=(stop,))
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert stopped.finished.stop == stop


async def test_length_is_exact_and_beaten_by_stop(client: AsyncClient) -> None:
    for max_tokens in (1, 2, 7, 8, 9):
        answer = await client.generate_once("Once", temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        assert len(answer.token_ids) == max_tokens
        assert answer.finished.finish_reason == "length"
    last = answer.token_ids[-1]
    if last not in answer.token_ids[:-1]:
        both = await client.generate_once("Once", temperature=0.0, max_tokens=9, stop_token_ids=(last,))
        assert both.finished.finish_reason == "stop"


async def test_a_repeated_prompt_hits_the_prefix_cache_and_says_the_same(client: AsyncClient) -> None:
    prompt = "A long story about a lighthouse keeper who counted ships. " * 8
    first = await client.generate_once(prompt, temperature=0.0, max_tokens=12)
    second = await client.generate_once(prompt, temperature=0.0, max_tokens=12)
    assert second.token_ids == first.token_ids
    assert second.finished.usage.cached_tokens >= 16


async def test_a_prompt_longer_than_a_step_beside_a_stream(client: AsyncClient) -> None:
    long_prompt = " ".join(f"Item {number} costs {number * 7 % 101} francs." for number in range(160))
    stream = client.generate("Once upon a time", temperature=0.0, max_tokens=64, ignore_eos=True)
    beside = asyncio.create_task(client.generate_once(long_prompt, temperature=0.0, max_tokens=8))
    answer = await stream.answer()
    assert len(answer.token_ids) == 64
    assert (await beside).finished.usage.prompt_tokens > 1024


async def test_models(client: AsyncClient) -> None:
    model = await client.model()
    assert model.ready
    assert model.chat
    assert model.max_model_len >= 2048
