"""What a server bears: connections that say nothing, or half of something, and pings."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import grpc.aio
import pytest
from raw_http2 import GREETING, HEADERS, PING, PREFACE, Connections, call_headers, frame

from tercet.rpc import SERVER_OPTIONS, Server, keepalive, open_channel, server_options
from tercet.v1 import models_pb2, models_pb2_grpc

COUNT = 200
HALF_A_CALL = call_headers(b"/tercet.v1.Models/GetModel")


class Models(models_pb2_grpc.ModelsServicer):
    """Answers at once, but for one that is silent for as long as its name says."""

    async def GetModel(self, request, context):
        if request.name.isdigit():
            await asyncio.sleep(int(request.name))
        return models_pb2.Model(name=request.name)


@contextlib.asynccontextmanager
async def serving(**options: int):
    """A server on a free port with its usual options, but for these."""
    given = [(f"grpc.{name.replace('__', '.')}", value) for name, value in options.items()]
    server = Server([*given, *server_options()])
    models_pb2_grpc.add_ModelsServicer_to_server(Models(), server.grpc_server)
    yield await server.start("127.0.0.1", 0, [models_pb2.DESCRIPTOR], key="gateway.port")
    await server.stop(0)


async def ask(port: int, name: str = "m") -> str:
    async with open_channel(f"127.0.0.1:{port}") as channel:
        stub = models_pb2_grpc.ModelsStub(channel)
        return (await stub.GetModel(models_pb2.GetModelRequest(name=name), timeout=60)).name


IMPATIENT = {name.removeprefix("grpc.").replace(".", "__"): value for name, value in keepalive(0.5, 0.5)}


@pytest.mark.parametrize(
    ("sent", "options"),
    [
        (b"", {"server_handshake_timeout_ms": 1000}),
        (PREFACE[:10], {"server_handshake_timeout_ms": 1000}),
        (PREFACE, {"server_handshake_timeout_ms": 1000}),
        # They do not answer pings either.
        (GREETING, IMPATIENT),
        (GREETING + frame(HEADERS, 0, 1, HALF_A_CALL[:20]), IMPATIENT),
        (GREETING + frame(HEADERS, 0, 1, HALF_A_CALL, length=16_000), IMPATIENT),
        (GREETING, {"max_connection_idle_ms": 1000}),
        (GREETING + frame(HEADERS, 0, 1, HALF_A_CALL[:20]), {"max_connection_idle_ms": 1000}),
    ],
    ids=[
        "nothing",
        "half a preface",
        "no settings",
        "no call",
        "half the headers",
        "half a frame",
        "idle",
        "half a call",
    ],
)
async def test_who_says_half_of_something_is_not_waited_for(sent, options):
    async with serving(**options) as port, Connections(port) as crowd:
        await crowd.open(sent, COUNT)
        assert await ask(port) == "m"
        await crowd.until_closed(COUNT, 30)
        assert await ask(port) == "m"


async def test_no_more_connections_are_taken_than_allowed():
    async with serving(max_allowed_incoming_connections=50) as port, Connections(port) as crowd:
        await crowd.open(GREETING, COUNT)
        await crowd.until_closed(COUNT - 50, 30)
        assert crowd.closed == COUNT - 50
    async with serving(max_allowed_incoming_connections=50) as port:
        for _ in range(COUNT):
            async with Connections(port) as one:
                await one.open(GREETING)
        # Those that have gone leave their place.
        assert await ask(port) == "m"


def test_pings_have_room_to_arrive_early():
    assert dict(SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"] * 2 <= 10_000


@pytest.mark.parametrize(("apart_s", "lives"), [((0.7, 0.3, 0.5) * 3, True), ((0.1,) * 10, False)])
async def test_a_silent_call_survives_pings_that_come_unevenly(apart_s, lives):
    """A twentieth of the true times: ten seconds are half of one."""
    floor = dict(SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"] // 20
    async with serving(http2__min_ping_interval_without_data_ms=floor) as port, Connections(port) as one:
        await one.open(GREETING + frame(HEADERS, 0x4, 1, HALF_A_CALL))
        for wait_s in apart_s:
            await asyncio.sleep(wait_s)
            if one.closed:
                break
            one.send(frame(PING, 0, 0, bytes(8)))
        if lives:
            assert one.closed == 0
        else:
            await one.until_closed(1, 10)
            assert b"too_many_pings" in one.received[0]


@pytest.mark.soak
async def test_a_silent_call_of_two_minutes_survives_pings_every_ten_seconds():
    async with serving() as port:
        options = [*keepalive(10.0, 10.0), ("grpc.keepalive_permit_without_calls", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            stub = models_pb2_grpc.ModelsStub(channel)
            assert (await stub.GetModel(models_pb2.GetModelRequest(name="130"), timeout=200)).name == "130"
