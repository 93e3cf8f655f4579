"""grpc.health.v1 as it is served: names, reasons, watches."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tercet.health import NAMES
from tercet.health_service import MAX_REASON_CHARS, REASON_KEY, Teller, as_metadata
from tercet.rpc import Server, open_channel

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.fixture
async def running():
    server = Server()
    port = await server.start("127.0.0.1", 0, [], key="worker.port")
    async with open_channel(f"127.0.0.1:{port}") as channel:
        yield server, health_pb2_grpc.HealthStub(channel)
    await server.stop(0)


async def check(stub: Any, name: str) -> tuple[int, str]:
    """State and reason of a name."""
    call = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=20)
    reply = await call
    return reply.status, dict(await call.trailing_metadata()).get(REASON_KEY, "")


async def test_every_service_has_the_four_names(running):
    _, stub = running
    for name in ("", *NAMES):
        assert await check(stub, name) == (SERVING, "")
    listed = await stub.List(health_pb2.HealthListRequest(), timeout=20)
    assert {name: each.status for name, each in listed.statuses.items()} == dict.fromkeys(("", *NAMES), SERVING)


async def test_a_name_that_does_not_hold_says_why(running):
    server, stub = running
    server.tell({"intact": ("a worker is missing", "the ledger is behind")})
    assert await check(stub, "intact") == (NOT_SERVING, "a worker is missing; the ledger is behind")
    assert await check(stub, "ready") == (SERVING, "")
    server.tell({"intact": ()})
    assert await check(stub, "intact") == (SERVING, "")


async def test_an_unknown_name_is_not_found_and_the_known_ones_are_named(running):
    _, stub = running
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await check(stub, "degraded")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "live, ready, intact, has-room" in caught.value.details()


async def test_a_watch_is_told_of_each_change_and_of_nothing_else(running):
    server, stub = running
    call = stub.Watch(health_pb2.HealthCheckRequest(service="has-room"))

    async def told() -> int:
        return (await asyncio.wait_for(call.read(), 20)).status

    assert await told() == SERVING
    server.tell({"ready": ("it loads",), "has-room": ()})
    server.tell({"has-room": ("calls",)})
    assert await told() == NOT_SERVING
    server.tell({"has-room": ("more calls",)})
    server.tell({"has-room": ()})
    assert await told() == SERVING
    call.cancel()


async def test_a_watch_of_a_name_that_is_not_there_yet(running):
    server, stub = running
    call = stub.Watch(health_pb2.HealthCheckRequest(service="later"))
    assert (await asyncio.wait_for(call.read(), 20)).status == UNKNOWN
    server.set_serving("later", True)
    assert (await asyncio.wait_for(call.read(), 20)).status == SERVING
    call.cancel()


async def test_who_stops_lives_and_is_nothing_else(running):
    server, stub = running
    held = stub.Watch(health_pb2.HealthCheckRequest(service="ready"))
    assert (await asyncio.wait_for(held.read(), 20)).status == SERVING
    # Probes have an answer for as long as the watch, a call of its own, has its grace.
    stopping = asyncio.create_task(server.stop(20.0))
    assert (await asyncio.wait_for(held.read(), 20)).status == NOT_SERVING
    server.tell({"ready": ()})
    assert server._health._conditions["ready"] == ("it stops",)
    assert server._health._conditions["live"] == ()
    held.cancel()
    await asyncio.wait_for(stopping, 20)


async def test_what_changes_is_in_the_log(running):
    server, _ = running
    with structlog.testing.capture_logs() as logged:
        server.tell({"intact": ("x",), "tercet.v1.Models": ("x",)})
        server.tell({"intact": ("y",)})
        server.tell({"intact": ()})
    assert [(each["log_level"], each["name"], each["reasons"]) for each in logged] == [
        ("warning", "intact", ("x",)),
        ("info", "intact", ()),
    ]


async def test_a_look_follows_each_change_at_once():
    looks, told, changed = [({"ready": ()}), ({"ready": ("x",)})], [], asyncio.Event()
    heard = asyncio.Event()

    def tell(conditions):
        told.append(conditions)
        heard.set()

    class Looks(Teller):
        def look(self):
            return looks[min(len(told), 1)]

    telling = asyncio.create_task(Looks(tell, changed).run())
    await asyncio.wait_for(heard.wait(), 20)
    heard.clear()
    changed.set()
    await asyncio.wait_for(heard.wait(), 20)
    assert told[:2] == looks
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)


def test_reasons_fit_into_metadata():
    assert as_metadata("Straße\nzu") == "Stra?e?zu"
    assert len(as_metadata("x" * 5000)) == MAX_REASON_CHARS
