"""Texts and token ids of several tenants: who waits for whom."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc.aio
import pytest

from gateway import tokenizing
from gateway.chat import Chat, Message
from gateway.prompt_input import ChatInput, TextInput
from gateway.served_model import ServedModel
from gateway.tokenizer import Tokenizer
from gateway.turns import Turns
from tercet.errors import PromptTooLongError
from tercet.rpc import typed_error
from tercet.v1 import inference_pb2 as pb

from .guarded_gateway import GuardedGateway, until

LONG = pb.TokenizeRequest(prompt="hello " * 20_000)


@pytest.fixture
def turns_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of each turn that is taken, whose it is."""
    seen: list[str] = []
    place = Turns.place

    @contextlib.asynccontextmanager
    async def noted(self: Turns, tenant: str) -> AsyncIterator[None]:
        seen.append(tenant)
        async with place(self, tenant):
            yield

    monkeypatch.setattr(Turns, "place", noted)
    return seen


class Stuck:
    """Long texts that are being tokenized until `go`."""

    def __init__(self) -> None:
        self.count = 0
        self.go = threading.Event()


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    held, encode = Stuck(), Tokenizer.encode

    def slow(self: Tokenizer, text: str, *, add_bos: bool) -> list[int]:
        if len(text) == len(LONG.prompt):
            held.count += 1
            held.go.wait()
        return encode(self, text, add_bos=add_bos)

    monkeypatch.setattr(Tokenizer, "encode", slow)
    yield held
    held.go.set()


async def test_each_tenant_has_its_turn(
    guarded: GuardedGateway, turns_of: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The context of the model here is short.
    monkeypatch.setattr(tokenizing, "_INLINE_IDS", 199)
    text = "hello " * 1000
    for who in ("alice", "bob"):
        told = (await guarded.call("Inference/Tokenize", who, pb.TokenizeRequest(prompt=text)))[0]
        ids = told.token_ids[:200]
        back = (await guarded.call("Inference/Detokenize", who, pb.DetokenizeRequest(token_ids=ids)))[0]
        assert text.startswith(back.text.strip())
        assert len(back.text) > 190
    assert turns_of == ["alice", "alice", "bob", "bob"]


async def test_what_is_short_waits_for_nobody(guarded: GuardedGateway, turns_of: list[str]) -> None:
    told = (await guarded.call("Inference/Tokenize", "alice", pb.TokenizeRequest(prompt="hello")))[0]
    back = (await guarded.call("Inference/Detokenize", "alice", pb.DetokenizeRequest(token_ids=told.token_ids)))[0]
    assert back.text.strip() == "hello"
    assert turns_of == []


async def test_what_is_of_the_usual_length_waits_for_nothing_long(guarded: GuardedGateway, stuck: Stuck) -> None:
    long = [asyncio.create_task(guarded.call("Inference/Tokenize", "alice", LONG)) for _ in range(4)]
    await until(lambda: stuck.count > 0)
    told = (await guarded.call("Inference/Tokenize", "bob", pb.TokenizeRequest(prompt="hello " * 1000)))[0]
    assert len(told.token_ids) > 1000
    assert not any(task.done() for task in long)
    stuck.go.set()
    answers = [answer for (answer,) in await asyncio.gather(*long)]
    assert [list(answer.token_ids) for answer in answers] == [list(answers[0].token_ids)] * 4


async def test_tokenizing_takes_places_of_the_tenant(guarded: GuardedGateway, stuck: Stuck) -> None:
    guarded.store.change("alice", max_concurrent=1)
    await guarded.until_seen()
    long = [asyncio.create_task(guarded.call("Inference/Tokenize", "alice", LONG)) for _ in range(2)]
    await until(lambda: stuck.count > 0)
    short = pb.TokenizeRequest(prompt="hello")
    # The second one waits for its turn, which nobody sees; where it is, there is no place.
    with contextlib.suppress(grpc.aio.AioRpcError):
        while True:
            await guarded.call("Inference/Tokenize", "alice", short)
    for method, request in (
        ("Tokenize", short),
        ("Detokenize", pb.DetokenizeRequest(token_ids=[1])),
        ("GenerateOnce", pb.GenerateRequest(prompt="hello")),
    ):
        refused = await guarded.refused(f"Inference/{method}", "alice", request)
        assert (refused.reason, dict(refused.variables)["quota"]) == ("TENANT_QUOTA", "max_concurrent")
    await guarded.call("Inference/Tokenize", "bob", short)
    stuck.go.set()
    await asyncio.gather(*long)
    for _ in range(3):
        await guarded.call("Inference/Tokenize", "alice", short)


@pytest.mark.parametrize(("max_context", "limit"), [(0, "max_model_len"), (16, "max_context")])
async def test_what_must_be_too_long_is_not_tokenized(
    guarded: GuardedGateway, turns_of: list[str], max_context: int, limit: str
) -> None:
    guarded.store.change("alice", max_context=max_context)
    await guarded.until_seen()
    prompt = "x" * 13 * (max_context or 256)
    for method in ("Generate", "GenerateOnce"):
        refused = await guarded.refused(f"Inference/{method}", "alice", pb.GenerateRequest(prompt=prompt))
        assert refused.reason == "PROMPT_TOO_LONG"
        assert limit in dict(refused.variables)
    assert turns_of == []
    assert not guarded.scheduler.sequences


async def test_what_must_have_too_many_tokens_is_not_tokenized(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []

    def check(least: int) -> None:
        told.append(least)
        raise PromptTooLongError("too long", field="chat")

    def never(self: Tokenizer, text: str, **_: Any) -> list[int]:
        raise AssertionError(text[:20])

    monkeypatch.setattr(Tokenizer, "encode", never)
    monkeypatch.setattr(Tokenizer, "encode_literal", never)
    pool = tokenizing.Tokenizing(1 << 20)
    texts = ["hello", "hello " * 500, "hello " * 20_000, "<|end|>" * 500]
    for text in texts:
        for given in (TextInput(text), ChatInput(Chat((Message("user", text),)))):
            with pytest.raises(PromptTooLongError):
                await pool.encode(model, given, "", check)
    pool.close()
    assert len(told) == 2 * len(texts)
    # The chat's is that of its text and what the template adds.
    assert all(0 < alone <= within for alone, within in zip(told[::2], told[1::2], strict=True))


async def test_a_chat_that_must_be_too_long_is_refused_by_its_size(gateway: Any) -> None:
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hello" * 50)] * 50)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await gateway.inference.GenerateOnce(pb.GenerateRequest(chat=chat))
    error = typed_error(caught.value.trailing_metadata())
    assert isinstance(error, PromptTooLongError)
    assert error.metadata["field"] == "chat"
    assert int(error.metadata["prompt_tokens_at_least"]) > 50 * 50 * 5 // 13
