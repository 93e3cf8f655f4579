"""A gateway among clients that mean no good: it serves the others meanwhile, and is afterwards what it was before."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tercet.client import AsyncClient
from tercet.errors import GatewayLostError, InvalidFieldError, PromptTooLongError

from ..tercet.raw_http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    GREETING,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Connections,
    call_headers,
    frame,
    literal,
)
from .conftest import Mesh, wait_until

pytestmark = pytest.mark.e2e

MIB = 1024 * 1024
CALL = call_headers(b"/tercet.v1.Inference/Generate")
# gRPC's frame of a message: a flag, four bytes of length.
HELLO = b"\x00" + (8).to_bytes(4, "big") + b"\x12\x02\x08\x01" + bytes(4)

NONSENSE = {
    "http/1.1": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "tls": bytes([22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]) + bytes(500),
    "zeros": bytes(5000),
    "settings of odd length": PREFACE + frame(SETTINGS, 0, 0, bytes(5)),
    "settings that acknowledge with a payload": GREETING + frame(SETTINGS, 1, 0, bytes(6)),
    "window of all": PREFACE + frame(SETTINGS, 0, 0, b"\x00\x04\xff\xff\xff\xff"),
    "frame of 16 MB": GREETING + frame(DATA, 0, 1, bytes(100), length=(1 << 24) - 1),
    "data of no stream": GREETING + frame(DATA, END_STREAM, 0, b"hello"),
    "data of a stream that is not": GREETING + frame(DATA, 0, 77, b"hello"),
    "headers of no stream": GREETING + frame(HEADERS, END_HEADERS, 0, CALL),
    "headers of an even stream": GREETING + frame(HEADERS, END_HEADERS, 2, CALL),
    "headers after headers that end": GREETING
    + frame(HEADERS, END_HEADERS, 1, CALL)
    + frame(CONTINUATION, END_HEADERS, 1, CALL),
    "continuation of nothing": GREETING + frame(CONTINUATION, END_HEADERS, 1, CALL),
    "padding beyond the frame": GREETING + frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + CALL[:10]),
    "an index that is not": GREETING + frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\x0f"),
    "a table of 4 GB": GREETING + frame(HEADERS, END_HEADERS, 1, b"\x3f\xff\xff\xff\xff\x0f" + CALL),
    "huffman nonsense": GREETING + frame(HEADERS, END_HEADERS, 1, b"\x00\x84\xff\xff\xff\xff\x84\xff\xff\xff\xff"),
    "no pseudo headers": GREETING + frame(HEADERS, END_HEADERS, 1, literal(b"te", b"trailers")),
    "a path of another method": GREETING + frame(HEADERS, END_HEADERS | END_STREAM, 1, call_headers(b"/../../etc")),
    "no message": GREETING + frame(HEADERS, END_HEADERS | END_STREAM, 1, CALL),
    "a message of 4 GB": GREETING
    + frame(HEADERS, END_HEADERS, 1, CALL)
    + frame(DATA, 0, 1, b"\x00\xff\xff\xff\xff" + bytes(1000)),
    "a compressed message": GREETING
    + frame(HEADERS, END_HEADERS, 1, CALL)
    + frame(DATA, END_STREAM, 1, b"\x01" + HELLO[1:]),
    "half a message": GREETING + frame(HEADERS, END_HEADERS, 1, CALL) + frame(DATA, END_STREAM, 1, HELLO[:7]),
    "two messages": GREETING + frame(HEADERS, END_HEADERS, 1, CALL) + frame(DATA, END_STREAM, 1, HELLO + HELLO),
    "a ping of odd length": GREETING + frame(PING, 0, 0, bytes(7)),
    "priority of itself": GREETING + frame(PRIORITY, 0, 1, (1).to_bytes(4, "big") + b"\x01"),
    "a window of nothing": GREETING + frame(WINDOW_UPDATE, 0, 0, bytes(4)),
    "windows beyond all": GREETING + frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 3,
    "a promise": GREETING + frame(PUSH_PROMISE, END_HEADERS, 1, (2).to_bytes(4, "big") + CALL),
    "goodbye": GREETING + frame(GOAWAY, 0, 0, bytes(8)),
    "a kind that is not": GREETING + frame(200, 0xFF, 1, bytes(100)),
    "pings without end": GREETING + frame(PING, 0, 0, bytes(8)) * 5000,
    "settings without end": GREETING + frame(SETTINGS, 0, 0, b"\x00\x03\x00\x00\x00\x64") * 5000,
    "headers without end": GREETING
    + frame(HEADERS, 0, 1, CALL)
    + frame(CONTINUATION, 0, 1, literal(b"x", b"y" * 100)) * 2000,
}


def num_files(mesh: Mesh) -> int:
    return len(os.listdir(f"/proc/{mesh.pid('gateway')}/fd"))


def memory(mesh: Mesh) -> int:
    """Bytes of the gateway in memory."""
    pages = int(Path(f"/proc/{mesh.pid('gateway')}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
async def unharmed(mesh: Mesh, client: AsyncClient) -> AsyncIterator[None]:
    """The gateway answers before and after, leaves no connection behind, and has met no bug of its own."""
    await answered(client)
    files, faults = num_files(mesh), len(mesh.records("gateway", "handler_failed"))
    yield
    await answered(client)
    await asyncio.to_thread(wait_until, lambda: num_files(mesh) <= files + 5, "the connections are gone", 30.0)
    assert len(mesh.records("gateway", "handler_failed")) == faults
    assert "Traceback" not in (mesh.logs().partition("--- gateway.log")[2])


async def answered(client: AsyncClient) -> None:
    answer = await client.generate_once("Once", max_tokens=4, ignore_eos=True, timeout_s=60)
    assert answer.finished.usage.completion_tokens == 4


async def test_nonsense_harms_nobody(mesh: Mesh, client: AsyncClient, unharmed: None) -> None:
    for what, sent in NONSENSE.items():
        before = memory(mesh)
        async with Connections(mesh.ports["gateway"]) as crowd:
            await crowd.open(sent, 20)
            await answered(client)
        assert memory(mesh) - before < 100 * MIB, what


async def test_hundreds_who_keep_a_connection_half_open_are_not_waited_for(
    mesh: Mesh, client: AsyncClient, unharmed: None
) -> None:
    before = memory(mesh)
    async with Connections(mesh.ports["gateway"]) as crowd, Connections(mesh.ports["gateway"]) as silent:
        for sent in (b"", PREFACE[:12], PREFACE):
            await crowd.open(sent, 200)
        await silent.open(GREETING + frame(HEADERS, 0, 1, CALL[:20]), 200)
        await asyncio.to_thread(wait_until, lambda: num_files(mesh) > 800, "all are accepted")
        await answered(client)
        await crowd.until_closed(600, 60)
        await answered(client)
        assert memory(mesh) - before < 100 * MIB


async def test_thousands_who_come_and_go_leave_nothing(mesh: Mesh, client: AsyncClient, unharmed: None) -> None:
    before = memory(mesh)
    for _ in range(20):
        async with Connections(mesh.ports["gateway"]) as crowd:
            await crowd.open(GREETING, 150)
            await answered(client)
    assert memory(mesh) - before < 100 * MIB


async def test_calls_that_are_reset_as_soon_as_they_are_made_fill_no_memory(
    mesh: Mesh, client: AsyncClient, unharmed: None
) -> None:
    before = memory(mesh)
    cancelled = (8).to_bytes(4, "big")
    calls = b"".join(
        frame(HEADERS, END_HEADERS, stream, CALL) + frame(RST_STREAM, 0, stream, cancelled)
        for stream in range(1, 4001, 2)
    )
    for _ in range(4):
        async with Connections(mesh.ports["gateway"]) as crowd:
            await crowd.open(GREETING + calls, 20)
            await asyncio.sleep(0.5)
    # 160,000 were made; as many as may wait for their handlers take 20 KB each.
    assert memory(mesh) - before < 600 * MIB
    # Until it is through with them, it turns others away.
    for _ in range(60):
        with contextlib.suppress(GatewayLostError):
            await answered(client)
            return
        await asyncio.sleep(0.5)
    pytest.fail("it does not answer any more")


async def test_calls_without_requests_are_cheap(mesh: Mesh, client: AsyncClient, unharmed: None) -> None:
    before = memory(mesh)
    async with grpc.aio.insecure_channel(mesh.address) as channel:
        calls = [channel.stream_stream("/tercet.v1.Inference/Generate")() for _ in range(2000)]
        await asyncio.gather(*(call.wait_for_connection() for call in calls[:1]), return_exceptions=True)
        await answered(client)
        assert memory(mesh) - before < 150 * MIB
        assert not any(call.done() for call in calls)
        for call in calls:
            call.cancel()


async def test_what_is_too_large_is_said_to_be(mesh: Mesh, client: AsyncClient, unharmed: None) -> None:
    with pytest.raises(PromptTooLongError):
        await client.generate_once("a" * (3 * MIB))
    with pytest.raises(InvalidFieldError, match="too large"):
        await client.generate_once("a" * (9 * MIB))
    with pytest.raises(InvalidFieldError):
        await client.generate_once("a", request_id="b" * 9000)
    # Nor is it unpacked: a few KB of compressed zeros.
    before = memory(mesh)
    small = {"options": [("grpc.max_send_message_length", -1)], "compression": grpc.Compression.Gzip}
    async with grpc.aio.insecure_channel(mesh.address, **small) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/tercet.v1.Inference/GenerateOnce")(bytes(256 * MIB), timeout=60)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert memory(mesh) - before < 100 * MIB
