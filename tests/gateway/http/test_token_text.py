"""Logprobs as OpenAI shows them, and where tokens begin in a text."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gateway.http.shapes import prompt_offsets, token_offsets
from gateway.http.token_text import token_text
from gateway.stream import Delta
from tercet.mesh.v1 import sequence_pb2
from tests.gateway.prompt_parts import send_part

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


@pytest.fixture
def with_prompts(scheduler: Any) -> Any:
    """Answers with logprobs of the prompt, and two tokens of its own."""

    async def play(sequence: Any) -> None:
        ids = [*sequence.submit.prompt_token_ids]
        part = sequence_pb2.PromptLogprobs(
            sequence_id=sequence.sequence_id, first=1, logprobs=[-i for i in range(1, len(ids))],
            top_ids=[EOS] * (len(ids) - 1), top_logprobs=[-math.inf] * (len(ids) - 1),
        )  # fmt: skip
        if len(ids) > 1:
            await send_part(scheduler, part)
        for output in sequence.outputs:
            await output.tokens(*ids[:2], logprobs=logprobs_for(output.sequence_id, ids[:2]))
            await output.end(sequence_pb2.END_REASON_LENGTH)

    scheduler.play = play
    return scheduler


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echoed_prompt_has_its_own(client, with_prompts, stream):
    asked = {"model": "bytes", "prompt": ["a世hello", "b"], "n": 2, "echo": True, "logprobs": 1, "stream": stream}
    made = await client.completions.create(**asked)
    shown: dict[int, dict[str, list[Any]]] = {}
    texts: dict[int, str] = {}
    for each in [each async for each in made] if stream else [made]:
        for choice in each.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset") if choice.logprobs else ():
                shown.setdefault(choice.index, {}).setdefault(name, []).extend(getattr(choice.logprobs, name))
    assert texts == {0: "a世helloa\ufffd", 1: "a世helloa\ufffd", 2: "bb", 3: "bb"}
    assert [each.submit.sampling.num_prompt_logprobs for each in with_prompts.sequences] == [1, 1]
    first, last = shown[0], shown[3]
    assert first["tokens"] == ["a", "bytes:\\xe4", "bytes:\\xb8", "bytes:\\x96", "hello", "a", "bytes:\\xe4"]
    assert first["token_logprobs"] == [None, -1, -2, -3, -4, -0.5, -0.5]
    assert first["top_logprobs"][:2] == [None, {"<|end|>": -9999.0, "bytes:\\xe4": -1}]
    assert first["text_offset"] == [0, 1, 1, 1, 2, 7, 8]
    assert (last["tokens"], last["token_logprobs"]) == (["b", "b"], [None, -0.5])
    assert shown[1] == first
    assert all(len(values) == len(each["tokens"]) for each in shown.values() for values in each.values())


PLACES = [
    None,
    {"160": {"logprob": -1, "rank": None, "decoded_token": "bytes:\\xe4"},
     str(EOS): {"logprob": -9999.0, "rank": 1, "decoded_token": "<|end|>"}},
]  # fmt: skip


async def test_a_completion_has_those_of_its_prompt_with_each_choice(client, with_prompts):
    made = await client.completions.create(
        model="bytes", prompt=["a世", "b"], n=2, extra_body={"prompt_logprobs": 1}, max_tokens=2
    )
    first, second, third, fourth = (choice.model_extra["prompt_logprobs"] for choice in made.choices)
    assert (first[:2], second, third, fourth) == (PLACES, first, [None], [None])
    assert [choice.logprobs for choice in made.choices] == [None] * 4
    assert made.choices[0].text == "a\ufffd"


async def test_a_chat_has_those_of_its_prompt_once(http, with_prompts, model):
    body = {"messages": [{"role": "user", "content": "hi"}], "n": 2, "prompt_logprobs": 0, "max_tokens": 2}
    answer = (await http.post("/v1/chat/completions", json=body)).json()
    ids = with_prompts.sequences[0].submit.prompt_token_ids
    assert [None if place is None else list(place) for place in answer["prompt_logprobs"]] == [
        None, *([str(token_id)] for token_id in ids[1:])
    ]  # fmt: skip
    assert all("prompt_logprobs" not in choice for choice in answer["choices"])


async def test_who_does_not_ask_for_those_of_the_prompt_has_none(http, scheduler):
    chat = (await http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})).json()
    plain = (await http.post("/v1/completions", json={"prompt": "a"})).json()
    assert (chat["prompt_logprobs"], plain["choices"][0]["prompt_logprobs"]) == (None, None)


async def test_what_is_echoed_and_what_is_asked_of_a_prompt_have_each_their_own(http, with_prompts):
    body = {"prompt": "a世", "echo": True, "logprobs": 0, "prompt_logprobs": 1, "max_tokens": 2}
    choice = (await http.post("/v1/completions", json=body)).json()["choices"][0]
    assert with_prompts.sequences[0].submit.sampling.num_prompt_logprobs == 1
    assert choice["logprobs"]["top_logprobs"][1] == {"bytes:\\xe4": -1}
    assert choice["prompt_logprobs"][:2] == PLACES
    silent = (await http.post("/v1/completions", json={**body, "logprobs": None})).json()["choices"][0]
    assert (silent["logprobs"], silent["prompt_logprobs"][:2], silent["text"]) == (None, PLACES, "a世a\ufffd")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_is_scored_without_a_token_of_its_own(client, with_prompts, stream):
    asked = {"model": "bytes", "prompt": "a世", "echo": True, "logprobs": 0, "max_tokens": 0, "stream": stream}
    made = await client.completions.create(**asked)
    shown = [each.choices[0].logprobs for each in ([each async for each in made] if stream else [made])]
    assert [values for each in shown if each for values in each.token_logprobs] == [None, -1, -2, -3]


async def test_more_logprobs_of_prompts_than_an_answer_may_have(http, with_prompts, monkeypatch):
    monkeypatch.setattr("gateway.http.generating.MAX_PROMPT_LOGPROBS", 19)
    body = {"model": "bytes", "prompt": "hello!", "n": 5, "echo": True, "logprobs": 1}
    answer = await http.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "echo")
    assert (await http.post("/v1/completions", json={**body, "n": 4})).status_code == 200
    both = await http.post("/v1/completions", json={**body, "n": 3, "prompt_logprobs": 1})
    assert (both.status_code, both.json()["error"]["param"]) == (400, "prompt_logprobs")
    assert (await http.post("/v1/completions", json={**body, "n": 2, "prompt_logprobs": 1})).status_code == 200


def test_where_the_tokens_of_a_prompt_begin(model):
    text = "<s>he世<|end|>x"
    ids = model.tokenizer.encode(text, add_bos=False)
    offsets = prompt_offsets(model.tokenizer, ids, text)
    assert offsets == [0, 3, 5, 5, 5, 6, 13]
    # One that stands before the text is not in it.
    assert prompt_offsets(model.tokenizer, [257 + 3, *ids[1:2]], "he") == [0, 0]


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
