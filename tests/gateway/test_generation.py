"""A request's way to the scheduler: what is asked of it, and what it says of that."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest

from tercet import rpc
from tercet.errors import KvNeverFitsError
from tercet.failure import failure_to_proto
from tercet.v1 import inference_pb2 as pb


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
