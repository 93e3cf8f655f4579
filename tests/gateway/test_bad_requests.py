"""Requests that are refused by the gateway, each for the field that is wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import json_format

from gateway.tokenizer import Tokenizer
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import models_pb2
from tests.gateway.calls import failure_of, refused, stream

BAD_REQUESTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no input": ({}, "INVALID_FIELD", "input"),
    "empty prompt": ({"prompt": ""}, "INVALID_FIELD", "prompt"),
    "no tokens": ({"tokenIds": {}}, "INVALID_FIELD", "token_ids.ids"),
    "no messages": ({"chat": {}}, "INVALID_FIELD", "chat.messages"),
    "token out of range": ({"tokenIds": {"ids": [1, 280]}}, "INVALID_FIELD", "token_ids.ids[1]"),
    "unknown role": (
        {"chat": {"messages": [{"role": "user"}, {"role": "root"}]}}, "INVALID_FIELD", "chat.messages[1].role",
    ),
    "NaN temperature": ({"prompt": "x", "sampling": {"temperature": "NaN"}}, "INVALID_FIELD", "sampling.temperature"),
    "infinite": ({"prompt": "x", "sampling": {"temperature": "Infinity"}}, "INVALID_FIELD", "sampling.temperature"),
    "negative": ({"prompt": "x", "sampling": {"temperature": -0.5}}, "INVALID_FIELD", "sampling.temperature"),
    "top_p 0": ({"prompt": "x", "sampling": {"topP": 0}}, "INVALID_FIELD", "sampling.top_p"),
    "top_p 1.5": ({"prompt": "x", "sampling": {"topP": 1.5}}, "INVALID_FIELD", "sampling.top_p"),
    "top_p NaN": ({"prompt": "x", "sampling": {"topP": "NaN"}}, "INVALID_FIELD", "sampling.top_p"),
    "min_p 2": ({"prompt": "x", "sampling": {"minP": 2}}, "INVALID_FIELD", "sampling.min_p"),
    "min_p -1": ({"prompt": "x", "sampling": {"minP": -1}}, "INVALID_FIELD", "sampling.min_p"),
    "repetition 0": (
        {"prompt": "x", "sampling": {"repetitionPenalty": 0}}, "INVALID_FIELD", "sampling.repetition_penalty",
    ),
    "nothing but ends allowed": (
        {"token_ids": {"ids": [3]}, "sampling": {"allowedTokenIds": [7]}, "stop": {"tokenIds": [7], "minTokens": 2}},
        "INVALID_FIELD", "sampling.allowed_token_ids",
    ),
    "repetition NaN": (
        {"prompt": "x", "sampling": {"repetitionPenalty": "NaN"}}, "INVALID_FIELD", "sampling.repetition_penalty",
    ),
    "frequency 2.5": (
        {"prompt": "x", "sampling": {"frequencyPenalty": 2.5}}, "INVALID_FIELD", "sampling.frequency_penalty",
    ),
    "presence NaN": (
        {"prompt": "x", "sampling": {"presencePenalty": "NaN"}}, "INVALID_FIELD", "sampling.presence_penalty",
    ),
    "bias 101": (
        {"prompt": "x", "sampling": {"logitBias": [{"bias": 1}, {"tokenId": 7, "bias": 101}]}}, "INVALID_FIELD",
        "sampling.logit_bias[1].bias",
    ),
    "bias NaN": (
        {"prompt": "x", "sampling": {"logitBias": [{"bias": "NaN"}]}}, "INVALID_FIELD", "sampling.logit_bias[0].bias",
    ),
    "bias of no token": (
        {"prompt": "x", "sampling": {"logitBias": [{"tokenId": 280}]}}, "INVALID_FIELD",
        "sampling.logit_bias[0].token_id",
    ),
    "bias twice": (
        {"prompt": "x", "sampling": {"logitBias": [{"tokenId": 7}, {"tokenId": 7}]}}, "INVALID_FIELD",
        "sampling.logit_bias[1].token_id",
    ),
    "1,025 biases": (
        {"prompt": "x", "sampling": {"logitBias": [{}] * 1025}}, "INVALID_FIELD", "sampling.logit_bias",
    ),
    "allowed range": (
        {"prompt": "x", "sampling": {"allowedTokenIds": [1, 280]}}, "INVALID_FIELD", "sampling.allowed_token_ids[1]",
    ),
    "1,025 allowed": (
        {"prompt": "x", "sampling": {"allowedTokenIds": [1] * 1025}}, "INVALID_FIELD", "sampling.allowed_token_ids",
    ),
    "min_tokens": ({"prompt": "x", "stop": {"minTokens": 9, "maxTokens": 8}}, "INVALID_FIELD", "stop.min_tokens"),
    "min_tokens, no max": ({"prompt": "x", "stop": {"minTokens": 256}}, "INVALID_FIELD", "stop.min_tokens"),
    "21 prompt logprobs": (
        {"prompt": "x", "sampling": {"promptLogprobs": 21}}, "INVALID_FIELD", "sampling.prompt_logprobs",
    ),
    "empty bad word": ({"prompt": "x", "sampling": {"badWords": ["a", ""]}}, "INVALID_FIELD", "sampling.bad_words[1]"),
    "129 bad words": ({"prompt": "x", "sampling": {"badWords": ["a"] * 129}}, "INVALID_FIELD", "sampling.bad_words"),
    "1,025 bad tokens": (
        {"prompt": "x", "sampling": {"badWords": ["z" * 205 + c for c in "abcde"]}}, "INVALID_FIELD",
        "sampling.bad_words",
    ),
    "nothing but bad words allowed": (
        {"prompt": "x", "sampling": {"allowedTokenIds": [64, 65], "badWords": ["a", "b", "c"]}},
        "INVALID_FIELD", "sampling.bad_words",
    ),
    "21 logprobs": ({"prompt": "x", "sampling": {"logprobs": 21}}, "INVALID_FIELD", "sampling.logprobs"),
    "n 0": ({"prompt": "x", "sampling": {"n": 0}}, "INVALID_FIELD", "sampling.n"),
    "n 129": ({"prompt": "x", "sampling": {"n": 129}}, "INVALID_FIELD", "sampling.n"),
    "best_of": ({"prompt": "x", "sampling": {"bestOf": 4}}, "INVALID_FIELD", "sampling.best_of"),
    "best_of < n": ({"prompt": "x", "sampling": {"n": 5, "bestOf": 4}}, "INVALID_FIELD", "sampling.best_of"),
    "priority 101": ({"prompt": "x", "priority": 101}, "INVALID_FIELD", "priority"),
    "priority -101": ({"prompt": "x", "priority": -101}, "INVALID_FIELD", "priority"),
    "long class": ({"prompt": "x", "trafficClass": "c" * 65}, "INVALID_FIELD", "traffic_class"),
    "long salt": ({"prompt": "x", "cacheSalt": "s" * 129}, "INVALID_FIELD", "cache_salt"),
    "max_tokens 0": ({"prompt": "x", "stop": {"maxTokens": 0}}, "INVALID_FIELD", "stop.max_tokens"),
    "17 stop strings": ({"prompt": "x", "stop": {"strings": ["s"] * 17}}, "INVALID_FIELD", "stop.strings"),
    "empty stop string": ({"prompt": "x", "stop": {"strings": ["a", ""]}}, "INVALID_FIELD", "stop.strings[1]"),
    "long stop string": ({"prompt": "x", "stop": {"strings": ["é" * 129]}}, "INVALID_FIELD", "stop.strings[0]"),
    "65 stop ids": ({"prompt": "x", "stop": {"tokenIds": [1] * 65}}, "INVALID_FIELD", "stop.token_ids"),
    "stop id range": ({"prompt": "x", "stop": {"tokenIds": [999]}}, "INVALID_FIELD", "stop.token_ids[0]"),
    "long id": ({"prompt": "x", "requestId": "i" * 129}, "INVALID_FIELD", "request_id"),
    "id with newline": ({"prompt": "x", "requestId": "a\nb"}, "INVALID_FIELD", "request_id"),
    "prompt too long": ({"tokenIds": {"ids": [1] * 256}}, "PROMPT_TOO_LONG", "token_ids.ids"),
    "text too long": ({"prompt": "é" * 200}, "PROMPT_TOO_LONG", "prompt"),
    "no room": ({"prompt": "abc", "stop": {"maxTokens": 254}}, "PROMPT_TOO_LONG", "stop.max_tokens"),
    "5 MB": ({"prompt": "x" * 5_000_000}, "PROMPT_TOO_LONG", "prompt"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_REQUESTS)
async def test_bad_request(gateway: Any, scheduler: Any, name: str) -> None:
    fields, reason, field = BAD_REQUESTS[name]
    code, found, metadata = await refused(gateway, json_format.ParseDict(fields, pb.GenerateRequest()))
    assert (code, found, metadata["field"]) == (grpc.StatusCode.INVALID_ARGUMENT, reason, field)
    assert not scheduler.sequences
    assert (await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="hello"))).outputs[0].text == "hello"


async def test_room_is_used_to_the_last_token(gateway: Any, scheduler: Any, until: Any) -> None:
    request = pb.GenerateRequest(prompt="abc", stop=pb.StopConditions(max_tokens=253))
    await stream(gateway, request)
    assert scheduler.sequences[0].submit.max_tokens == 253
    code, _, metadata = await refused(gateway, pb.GenerateRequest(prompt="abc", stop=pb.StopConditions(max_tokens=254)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert (metadata["prompt_tokens"], metadata["max_tokens"], metadata["max_model_len"]) == ("3", "254", "256")
    scheduler.max_model_len = 10
    await scheduler.send_pools()

    async def limited() -> bool:
        return (await gateway.models.GetModel(models_pb2.GetModelRequest(name="bytes"))).max_model_len == 10

    await until(limited)
    _, _, metadata = await refused(gateway, pb.GenerateRequest(prompt="abcabcabcabc"))
    assert metadata["max_model_len"] == "10"


async def test_a_salt_that_is_refused_is_not_repeated(gateway: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="x", cache_salt="zq" * 65))
    assert failure_of(caught.value)[1:] == ("INVALID_FIELD", {"field": "cache_salt"})
    assert "zq" not in caught.value.details()
    assert b"zq" not in dict(caught.value.trailing_metadata())["grpc-status-details-bin"]


async def test_unknown_model_lists_the_served_names(gateway: Any) -> None:
    code, reason, metadata = await refused(gateway, pb.GenerateRequest(model="gpt", prompt="x"))
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
    assert metadata == {"model": "gpt", "served": "bytes, alias"}


def raw(gateway: Any, method: str) -> Any:
    return gateway.channel.unary_unary(f"/tercet.v1.Inference/{method}")


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"\x12\x02\xff\xfe", "prompt"),
        (b"\x12\x03\xed\xa0\x80", "prompt"),  # a lone surrogate
        (b"\x22\x0c\x0a\x0a\x0a\x04user\x12\x02\xc3\x28", "chat.messages[0].content"),
        (b"\x12\x01x\x32\x03\x12\x01\x80", "stop.strings[0]"),
        (b"\x12\x01x\x52\x01\x80", "cache_salt"),
        (b"\x12\x7fshort", None),
    ],
)
async def test_malformed_bytes_are_the_clients_fault(gateway: Any, data: bytes, field: str | None) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw(gateway, "GenerateOnce")(data)
    code, reason, metadata = failure_of(caught.value)
    assert (code, reason, metadata.get("field")) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", field)


@pytest.mark.parametrize(
    ("data", "message", "number"),
    [
        (b"\x12\x01x\xf8\x07\x01", "tercet.v1.GenerateRequest", "127"),
        (b"\x12\x01x\x2a\x02\x78\x01", "tercet.v1.SamplingParams", "15"),
        (b"\x22\x09\x0a\x07\x0a\x01u\x18\x01\x20\x01", "tercet.v1.ChatMessage", "3"),
    ],
)
async def test_unknown_fields_are_refused(gateway: Any, data: bytes, message: str, number: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw(gateway, "GenerateOnce")(data)
    code, reason, metadata = failure_of(caught.value)
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert (metadata["message"], metadata["field_number"]) == (message, number)


async def test_a_prompt_too_long_in_tokens_is_answered_while_others_run(
    gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Just below the bound in bytes: tokenized, in a thread, and refused for its tokens, as with a vocabulary of which
    # nobody can tell before.
    monkeypatch.setattr(Tokenizer, "least_tokens", lambda *_: 0)
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="word " * 400_000)])
    long = asyncio.ensure_future(gateway.inference.GenerateOnce(pb.GenerateRequest(chat=chat)))
    short = [gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="hello")) for _ in range(4)]
    assert [(await call).outputs[0].text for call in short] == ["hello"] * 4
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await long
    _, reason, metadata = failure_of(caught.value)
    assert (reason, metadata["field"]) == ("PROMPT_TOO_LONG", "chat")
    assert int(metadata["prompt_tokens"]) > 2_000_000


HELLO = pb.ChatMessage(role="user", content="hello")


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("Tokenize", pb.TokenizeRequest(), "input"),
        ("Tokenize", pb.TokenizeRequest(prompt=""), "prompt"),
        ("Tokenize", pb.TokenizeRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="x")])), "chat.messages[0].role"),
        ("Tokenize", pb.TokenizeRequest(chat=pb.Chat(messages=[HELLO], tools=[pb.Tool(name="f")])), "chat.tools"),
        ("Detokenize", pb.DetokenizeRequest(token_ids=[280]), "token_ids[0]"),
        ("Detokenize", pb.DetokenizeRequest(token_ids=[1] * 257), "token_ids"),
    ],
)
async def test_bad_text_requests(gateway: Any, method: str, request_: Any, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await getattr(gateway.inference, method)(request_)
    code, reason, metadata = failure_of(caught.value)
    assert (code, reason, metadata["field"]) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", field)
