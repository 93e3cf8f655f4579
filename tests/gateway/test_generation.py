"""A request's way to the scheduler: what is asked of it, and what it says of that."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.grammar_check import GrammarCheck
from tercet import rpc
from tercet.errors import InvalidFieldError, KvNeverFitsError
from tercet.failure import failure_to_proto
from tercet.grammar.grammar import Grammar
from tercet.mesh.v1 import sequence_pb2
from tercet.v1 import inference_pb2 as pb

from .conftest import sequence_end


async def test_without_max_tokens_the_output_has_what_a_worker_has_room_for(
    gateway: Any, scheduler: Any, until: Any
) -> None:
    scheduler.max_sequence_len = 100
    await scheduler.send_pools()

    async def asked(expected: int, **fields: Any) -> bool:
        await gateway.inference.GenerateOnce(pb.GenerateRequest(**fields))
        return bool(scheduler.sequences[-1].submit.max_tokens == expected)

    await until(lambda: asked(97, prompt="abc"))
    # What the client asks for is the scheduler's to refuse: it knows what is short.
    assert await asked(200, prompt="abc", stop=pb.StopConditions(max_tokens=200))
    assert await asked(1, prompt="a" * 100)


async def test_what_the_scheduler_says_of_the_prompt_is_said_of_what_the_client_gave(
    gateway: Any, scheduler: Any
) -> None:
    scheduler.refuse = failure_to_proto(KvNeverFitsError("too long", field="prompt_token_ids"))
    inputs = {
        "prompt": {"prompt": "x"},
        "token_ids.ids": {"token_ids": pb.TokenIds(ids=[1, 2])},
        "chat": {"chat": pb.Chat(messages=[pb.ChatMessage(role="user", content="x")])},
    }
    for field, fields in inputs.items():
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await gateway.inference.GenerateOnce(pb.GenerateRequest(**fields))
        error = rpc.typed_error(caught.value.trailing_metadata())
        assert isinstance(error, KvNeverFitsError)
        assert error.metadata["field"] == field


@pytest.mark.parametrize("tokens", [(), (1,)])
async def test_what_a_worker_says_of_a_grammar_is_said_of_what_the_client_gave(
    gateway: Any, scheduler: Any, tokens: tuple[int, ...]
) -> None:
    async def play(sequence: Any) -> None:
        failure = failure_to_proto(InvalidFieldError("it explodes", field="grammar"))
        end = sequence_end(sequence_pb2.END_REASON_FAILED, failure=failure)
        await sequence.tokens(*tokens, end=end)

    scheduler.play = play
    asked = pb.GenerateRequest(prompt="x", structured_output=pb.StructuredOutput(regex="a+"))
    call = gateway.inference.Generate(asked)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        _ = [event async for event in call]
    error = rpc.typed_error(caught.value.trailing_metadata())
    assert isinstance(error, InvalidFieldError)
    assert error.metadata["field"] == "structured_output"


async def test_a_grammar_is_tried_for_those_who_share_its_prefixes(
    gateway: Any, scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, check = [], GrammarCheck.check

    async def note(self: GrammarCheck, grammar: Grammar, tenant: str, field: str) -> None:
        checked.append(grammar.salt)
        await check(self, grammar, tenant, field)

    monkeypatch.setattr(GrammarCheck, "check", note)
    for salt in ("", "a", "b", "a"):
        form = pb.StructuredOutput(regex="a+")
        await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="x", cache_salt=salt, structured_output=form))
    assert checked == [each.submit.prefix_salt for each in scheduler.sequences]
    assert len(set(checked)) == 3
