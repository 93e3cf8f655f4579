"""Clients that do not read: their requests are paused, nobody else notices, and nothing of theirs is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from tercet import errors, rpc
from tercet.client import AsyncClient
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import inference_pb2_grpc

from .conftest import Mesh, wait_until

pytestmark = pytest.mark.e2e

OUTPUTS = 4
# What waits on a client's side of a connection fills up soon, if deltas are large and many.
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536)]


def long_request(request_id: str, prompt: list[int], max_tokens: int) -> pb.GenerateRequest:
    """One whose deltas are large and many."""
    return pb.GenerateRequest(
        request_id=request_id,
        token_ids=pb.TokenIds(ids=prompt),
        stop=pb.StopConditions(max_tokens=max_tokens, ignore_eos=True),
        sampling=pb.SamplingParams(temperature=1, seed=1, n=OUTPUTS, logprobs=20),
    )


@asynccontextmanager
async def stalled(mesh: Mesh, request: pb.GenerateRequest) -> AsyncIterator[Any]:
    """The call of a client that has read the first event and no more, and whose request is paused."""
    async with grpc.aio.insecure_channel(mesh.address, options=SMALL_WINDOW) as channel:
        call = inference_pb2_grpc.InferenceStub(channel).Generate(request)
        assert (await call.read()).HasField("accepted")
        await asyncio.to_thread(wait_until, lambda: mesh.fleet().requests_paused == 1, "the request is paused", 120.0)
        # What was on its way has come.
        await asyncio.to_thread(
            wait_until, lambda: not any(worker.sequences for worker in mesh.fleet().workers), "it rests"
        )
        yield call


async def read_on(call: Any) -> list[list[int]]:
    """All tokens that come, by output. Raises the error that ends it."""
    tokens: list[list[int]] = [[] for _ in range(OUTPUTS)]
    try:
        while (event := await call.read()) is not grpc.aio.EOF:
            tokens[event.delta.output_index] += event.delta.token_ids
    except grpc.aio.AioRpcError as error:
        raise rpc.typed_error(error.trailing_metadata()) or error from None
    return tokens


async def tokens_alone(client: AsyncClient, prompt: list[int], max_tokens: int) -> list[list[int]]:
    """What a reader who keeps up gets."""
    answer = await client.generate(
        prompt, max_tokens=max_tokens, ignore_eos=True, temperature=1, seed=1, n=OUTPUTS
    ).answer()
    return [list(output.token_ids) for output in answer.outputs]


async def test_a_reader_that_stops_and_goes_on_gets_every_token_and_delays_nobody(
    own_mesh: Callable[..., Mesh],
) -> None:
    mesh = own_mesh(TERCET_GATEWAY_MAX_STREAM_TOKENS="32")
    mesh.start()
    prompt, max_tokens = [5, 6, 7], 300
    async with AsyncClient(mesh.address) as client, stalled(mesh, long_request("stalls", prompt, max_tokens)) as call:
        before = mesh.fleet().workers[0]
        answers = await asyncio.gather(
            *(client.generate("Once", max_tokens=24, ignore_eos=True, seed=index).answer() for index in range(16))
        )
        assert all(len(answer.outputs[0].token_ids) == 24 for answer in answers)
        fleet = mesh.fleet()
        # It was in none of their steps, and still holds its blocks.
        assert fleet.workers[0].tokens - before.tokens == 16 * 24
        assert fleet.requests_paused == 1
        assert fleet.workers[0].blocks_used == before.blocks_used > 0
        tokens = await read_on(call)
        assert [len(each) for each in tokens] == [max_tokens] * OUTPUTS
        assert tokens == await tokens_alone(client, prompt, max_tokens)
    wait_until(lambda: bool(mesh.records("scheduler", "request_finished", request_id="stalls")), "it is over")
    (finished,) = mesh.records("scheduler", "request_finished", request_id="stalls")
    assert finished["pauses"] > 0
    assert finished["preemptions"] == 0
    assert finished["paused_ms"] > 0
    mesh.wait_idle()


async def test_blocks_of_a_paused_request_go_to_whoever_needs_them(own_mesh: Callable[..., Mesh]) -> None:
    # About 140 blocks of 16 tokens: each has room alone, and not beside the other.
    mesh = own_mesh(
        TERCET_GATEWAY_MAX_STREAM_TOKENS="32",
        TERCET_WORKER_KV_CACHE_MEMORY="50MiB",
        TERCET_MODEL_MAX_MODEL_LEN="2048",
    )
    mesh.start()
    prompt, max_tokens = [3 + index % 50 for index in range(64)], 480
    async with AsyncClient(mesh.address) as client, stalled(mesh, long_request("stalls", prompt, max_tokens)) as call:
        blocks = mesh.fleet().workers[0]
        other = [5 + index % 40 for index in range(16 * (blocks.blocks_total - blocks.blocks_used) + 64)]
        answer = await client.generate(other, max_tokens=16, ignore_eos=True).answer()
        assert len(answer.outputs[0].token_ids) == 16
        assert mesh.fleet().requests_paused == 1
        assert mesh.fleet().workers[0].blocks_used < blocks.blocks_used
        gone = mesh.records("scheduler", "preempted", request_id="stalls")
        assert {(each["rested"], each["made_room"]) for each in gone} == {(True, True)}
        assert await read_on(call) == await tokens_alone(client, prompt, max_tokens)
    mesh.wait_idle()


async def test_a_reader_that_never_goes_on_is_cut_off(own_mesh: Callable[..., Mesh]) -> None:
    mesh = own_mesh(TERCET_GATEWAY_MAX_STREAM_TOKENS="32", TERCET_GATEWAY_STREAM_STALL_SECONDS="2")
    mesh.start()
    async with stalled(mesh, long_request("stalls", [5, 6, 7], 4000)) as call:
        await asyncio.to_thread(mesh.wait_idle)
        assert mesh.fleet().requests_paused == 0
        with pytest.raises(errors.SlowConsumerError):
            await read_on(call)
    (ended,) = mesh.records("gateway", "request_ended", request_id="stalls")
    assert (ended["outcome"], ended["reason"]) == ("cancelled", "SLOW_CONSUMER")
