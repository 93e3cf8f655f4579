"""Clients that read nothing, not even the first byte: each hears its end when it reads on; until then what it has not
read takes a place."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest
import structlog

from tercet import errors, rpc
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import operations_pb2

from ..tercet.raw_http2 import DEAF_GREETING, Connections, listen_again, whole_call

GENERATE = pb.GenerateRequest(prompt="hello")


async def served(gateway: Any) -> bool:
    """Whether another client finds a place."""
    try:
        answer = await gateway.inference.GenerateOnce(GENERATE, timeout=20)
    except grpc.aio.AioRpcError as error:
        if not isinstance(rpc.typed_error(error.trailing_metadata()), errors.QueueFullError):
            raise
        return False
    return bool(answer.outputs[0].text == "hello")


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Generate", GENERATE),
        ("GenerateOnce", GENERATE),
        ("Tokenize", pb.TokenizeRequest(prompt="hello")),
        ("Detokenize", pb.DetokenizeRequest(token_ids=[5, 6])),
    ],
)
async def test_what_nobody_reads_is_ended_and_takes_a_place_until_it_is_read(
    method: str, request_: Any, scheduler: Any, make_gateway: Any, stop_gateway: Any, until: Any
) -> None:
    gateway = await make_gateway(scheduler.port, stream_stall_seconds=0.2, max_concurrent_requests=1)
    await gateway.until_ready()

    with structlog.testing.capture_logs() as logs:
        async with Connections(gateway.port) as deaf:
            path = f"/tercet.v1.Inference/{method}".encode()
            await deaf.open(DEAF_GREETING + whole_call(1, path, request_.SerializeToString()))

            async def given_up() -> bool:
                return any(entry.get("reason") == "SLOW_CONSUMER" for entry in logs)

            await until(given_up)
            assert not await served(gateway)
            deaf.send(listen_again(1))

            async def told() -> bool:
                return b"the client read nothing for 0.2 s" in deaf.received[0]

            await until(told)

            async def has_place() -> bool:
                return await served(gateway)

            await until(has_place)
    if request_ is GENERATE:
        ended = [entry for entry in logs if entry["event"] == "request_ended"]
        assert [entry["outcome"] for entry in ended if entry["reason"] == "SLOW_CONSUMER"] == ["cancelled"]
    await stop_gateway(gateway)


async def test_a_request_whose_first_message_nobody_reads_can_be_cancelled(
    scheduler: Any, make_gateway: Any, stop_gateway: Any, until: Any
) -> None:
    gateway = await make_gateway(scheduler.port, stream_stall_seconds=1000)
    await gateway.until_ready()

    async def play(sequence: Any) -> None:
        await sequence.cancelled.wait()

    scheduler.play = play
    with structlog.testing.capture_logs() as logs:
        async with Connections(gateway.port) as deaf:
            request = pb.GenerateRequest(prompt="hello", request_id="deaf").SerializeToString()
            await deaf.open(DEAF_GREETING + whole_call(1, b"/tercet.v1.Inference/Generate", request))

            async def found() -> bool:
                asked = operations_pb2.CancelGenerationRequest(request_id="deaf")
                return bool(scheduler.sequences) and (await gateway.operations.CancelGeneration(asked)).found

            async def ended() -> bool:
                return any(entry["event"] == "request_ended" for entry in logs)

            await until(found)
            await until(ended)
            deaf.send(listen_again(1))

            async def told() -> bool:
                return b"cancelled by its id" in deaf.received[0]

            await until(told)
    await stop_gateway(gateway)


async def test_a_client_that_leaves_unread_what_it_asked_for_gives_its_place_back(
    scheduler: Any, make_gateway: Any, stop_gateway: Any, until: Any
) -> None:
    gateway = await make_gateway(scheduler.port, stream_stall_seconds=60, max_concurrent_requests=1)
    await gateway.until_ready()
    async with Connections(gateway.port) as deaf:
        call = whole_call(1, b"/tercet.v1.Inference/GenerateOnce", GENERATE.SerializeToString())
        await deaf.open(DEAF_GREETING + call)

        async def ended() -> bool:
            return bool(scheduler.sequences) and scheduler.sequences[0].ended

        await until(ended)
        assert not await served(gateway)

    async def has_place() -> bool:
        return await served(gateway)

    await until(has_place)
    await stop_gateway(gateway)
