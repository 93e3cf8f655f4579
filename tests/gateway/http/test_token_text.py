"""Logprobs as OpenAI shows them, and where tokens begin in a text."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gateway.http.shapes import token_offsets
from gateway.http.token_text import token_text
from gateway.stream import Delta
from tercet.mesh.v1 import sequence_pb2

EOS = 261


def logprobs_for(sequence_id: int, token_ids: list[int]) -> list[sequence_pb2.TokenLogprobs]:
    return [
        sequence_pb2.TokenLogprobs(
            sequence_id=sequence_id, logprob=-0.5, top_ids=[token_id, EOS], top_logprobs=[-0.5, -math.inf]
        )
        for token_id in token_ids
    ]


@pytest.fixture
def with_logprobs(scheduler: Any) -> Any:
    """Answers with the prompt's tokens, each with two likeliest ones."""

    async def play(sequence: Any) -> None:
        ids = [*sequence.submit.prompt_token_ids]
        await sequence.tokens(*ids, logprobs=logprobs_for(sequence.sequence_id, ids))
        await sequence.end(sequence_pb2.END_REASON_LENGTH)

    scheduler.play = play
    return scheduler


async def test_a_completion_has_columns(client, with_logprobs, model):
    text = "hello 世"
    once = await client.completions.create(model="bytes", prompt=text, logprobs=2)
    shown = once.choices[0].logprobs
    assert shown.tokens == ["hello", " ", "bytes:\\xe4", "bytes:\\xb8", "bytes:\\x96"]
    assert shown.token_logprobs == [-0.5] * 5
    assert shown.text_offset == [0, 5, 6, 6, 6]
    assert shown.top_logprobs[0] == {"hello": -0.5, "<|end|>": -9999.0}
    streamed = await client.completions.create(model="bytes", prompt=text, logprobs=2, stream=True)
    pieces = [each.choices[0].logprobs async for each in streamed]
    assert [token for each in pieces if each for token in each.tokens] == shown.tokens
    assert [offset for each in pieces if each for offset in each.text_offset] == shown.text_offset


async def test_a_chat_has_entries(client, with_logprobs):
    once = await client.chat.completions.create(
        model="bytes", messages=[{"role": "user", "content": "hello"}], logprobs=True, top_logprobs=2
    )
    entries = once.choices[0].logprobs.content
    said = next(each for each in entries if each.token == "hello")
    assert (said.logprob, said.bytes) == (-0.5, list(b"hello"))
    assert [(each.token, each.logprob) for each in said.top_logprobs] == [("hello", -0.5), ("<|end|>", -9999.0)]
    special = next(each for each in entries if each.token == "<|user|>")
    assert special.bytes == []


def test_tokens_are_told_apart(model):
    texts = {token_text(model.tokenizer, token_id) for token_id in range(265)}
    assert len(texts) == 265
    # The model has more rows than its vocabulary has tokens.
    assert token_text(model.tokenizer, 279) == ""


def test_offsets_stay_within_the_text(model):
    ids = tuple(model.tokenizer.encode("hello 世界", add_bos=False))
    whole = Delta(0, 0, 0, "hello 世界", ids)
    assert token_offsets(model.tokenizer, whole, 10) == [10, 15, *[16] * 3, *[17] * 3]
    # Cut at a stop string.
    cut = Delta(0, 0, 0, "hel", ids)
    assert token_offsets(model.tokenizer, cut, 0) == [0, *[3] * 7]
