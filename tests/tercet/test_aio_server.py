"""A server that no call can stop."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import grpc.aio
import pytest
from raw_http2 import END_HEADERS, END_STREAM, GREETING, HEADERS, Connections, call_headers, frame

from tercet import errors
from tercet.aio_server import make_server
from tercet.rpc import Server, open_channel
from tercet.v1 import models_pb2, models_pb2_grpc

PATHS = [b"/tercet.v1.Models/\xff", b"\xff", b"", b"/", b"//", b"/tercet.v1.Models/GetModel\x00", b"*", b"\xf0\x9f\x90"]


class Models(models_pb2_grpc.ModelsServicer):
    async def GetModel(self, request, context):
        return models_pb2.Model(name=request.name)


@contextlib.asynccontextmanager
async def serving():
    server = make_server([], [])
    models_pb2_grpc.add_ModelsServicer_to_server(Models(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield port
    await asyncio.wait_for(server.stop(0), 20)


async def ask(port: int) -> str:
    async with open_channel(f"127.0.0.1:{port}") as channel:
        stub = models_pb2_grpc.ModelsStub(channel)
        return (await stub.GetModel(models_pb2.GetModelRequest(name="m"), timeout=20)).name


@pytest.mark.parametrize("path", PATHS)
async def test_no_path_stops_the_server(path):
    async with serving() as port, Connections(port) as crowd:
        await crowd.open(GREETING + frame(HEADERS, END_HEADERS | END_STREAM, 1, call_headers(path)), 5)
        for _ in range(3):
            assert await ask(port) == "m"


async def test_what_is_no_method_is_said_to_be_none():
    async with serving() as port, open_channel(f"127.0.0.1:{port}") as channel:
        for path in ("/no.such/Method", "/tercet.v1.Models/NoSuch"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(path)(b"", timeout=20)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_clients_that_leave_before_they_are_refused_do_no_harm(caplog):
    async with serving() as port, open_channel(f"127.0.0.1:{port}") as channel:
        calls = [channel.stream_stream("/no.such/Method")() for _ in range(500)]
        await asyncio.sleep(0.01)
        for call in calls:
            call.cancel()
        assert await ask(port) == "m"
    assert caplog.text == ""


async def test_a_server_that_ends_by_itself_is_noticed(monkeypatch):
    """grpcio's own is ended by such a call. Where this fails it has been mended, and ours is no longer needed."""
    monkeypatch.setattr("tercet.rpc.make_server", lambda options, doors: grpc.aio.server(options=options))
    server = Server()
    port = await server.start("127.0.0.1", 0, [models_pb2.DESCRIPTOR], key="gateway.port")
    crash = asyncio.create_task(server.crash())
    async with Connections(port) as one:
        await one.open(GREETING + frame(HEADERS, END_HEADERS | END_STREAM, 1, call_headers(b"/\xff")))
        with pytest.raises(errors.EngineFaultError):
            await asyncio.wait_for(crash, 20)
