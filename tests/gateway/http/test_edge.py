"""Clients that mean no good, or only do not read: each is told, or ended, and the others go on."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.guard import Guard
from gateway.http import connection
from gateway.http.application import Application
from gateway.http.exchange import Exchange
from gateway.http.json_body import MAX_VALUES, read_object
from tercet.errors import ConfigError, InvalidFieldError
from tercet.mesh.v1 import sequence_pb2
from tercet.ports import free_ports
from tercet.tenants.api_key import new_key

from ..conftest import config_for, start_gateway, stop_gateway
from ..guarded_gateway import GuardedGateway, guarded_gateway, until

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
BODY = json.dumps({"prompt": "hello", "stream": True, "max_tokens": 250, "ignore_eos": True}).encode()
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
REQUEST = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


LONG = json.dumps({"prompt": "hello", "n": 128, "max_tokens": 100, "logprobs": 0}).encode()
LONG_REQUEST = HEAD + b"content-length: %d\r\n\r\n" % len(LONG) + LONG


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def answer_to(port: int, data: bytes) -> bytes:
    """All that comes back until the server closes."""
    reader, writer = await connect(port)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


def dechunk(body: bytes) -> Iterator[bytes]:
    """The chunks of a whole body, the last of which is empty."""
    while body:
        size, _, rest = body.partition(b"\r\n")
        count = int(size, 16)
        assert rest[count : count + 2] == b"\r\n"
        yield rest[:count]
        body = rest[count + 2 :]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x00\x01\x02\r\n\r\n", b"400"),
        (b"GET / SPDY/1\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 40_000, b"400"),
        (HEAD + b"content-length: -1\r\n\r\n", b"400"),
        (HEAD + b"content-length: 1\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n0\r\n\r\n", b"400"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (b"GET /caf%FF HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", b"404"),
        (b"GET /health HTTP/1.1\r\nhost: [::1]\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n\r\n", b"200"),
    ],
)
async def test_bytes_that_are_no_request_are_answered(gateway, http_port, data, status):
    answer = await answer_to(http_port, data)
    assert answer.split(b" ")[1] == status
    if status != b"200":
        assert b'{"error": {"message": ' in answer


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (b"x-request-id: a\r\nx-request-id: b\r\nconnection: close\r\n", b"x-request-id stands there twice"),
        (b"x-tercet-class: a\r\nX-Tercet-Class: a\r\nconnection: close\r\n", b"x-tercet-class stands there twice"),
        # What follows might be another request to who believes the other header: the connection ends.
        (b"transfer-encoding: chunked\r\n", b"it has both content-length and transfer-encoding"),
    ],
)
async def test_a_head_that_may_mean_two_things_is_refused(gateway, http_port, more, problem):
    body = b"2\r\n{}\r\n0\r\n\r\n" if b"chunked" in more else BODY
    answer = await answer_to(http_port, HEAD + more + b"content-length: %d\r\n\r\n" % len(body) + body)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"message": "%b"' % problem in answer


async def test_a_head_that_does_not_come_is_given_up(gateway, http_port, monkeypatch):
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)
    assert await answer_to(http_port, b"") == b""
    assert await answer_to(http_port, HEAD) == b""
    _, writer = await connect(http_port)
    with pytest.raises(ConnectionError):
        for byte in HEAD * 100:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.01)


async def test_a_body_that_does_not_come_is_given_up(gateway, http_port, monkeypatch):
    async def short(exchange: Exchange, max_bytes: int, _: float) -> bytes:
        return await whole(exchange, max_bytes, 0.2)

    whole = Exchange.body
    monkeypatch.setattr(Exchange, "body", short)
    monkeypatch.setattr(connection, "REST_SECONDS", 0.2)
    answer = await answer_to(http_port, HEAD + b"content-length: 100\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"request_timeout" in answer


async def test_a_client_that_leaves_before_its_body_has_come_leaves_nothing(gateway, http_port, http):
    _, writer = await connect(http_port)
    writer.write(HEAD + b"content-length: 100\r\n\r\n{")
    await writer.drain()
    writer.close()
    assert (await http.get("/health")).status_code == 200


async def test_requests_follow_each_other_on_a_connection(gateway, http_port):
    once = json.dumps({"prompt": "hello"}).encode()
    request = HEAD + b"content-length: %d\r\n\r\n" % len(once) + once
    last = request.replace(b"host: localhost", b"host: localhost\r\nconnection: close")
    answer = await answer_to(http_port, request + request + last)
    assert answer.count(b"HTTP/1.1 200 ") == 3
    assert answer.count(b'"text":"hello"') == 3


class TestSlowReader:
    @pytest.fixture
    def settings(self, http_port: int) -> dict[str, Any]:
        return {
            "http_port": http_port,
            "max_stream_tokens": 16,
            "stream_stall_seconds": 1.0,
            "max_concurrent_requests": 1,
        }

    @pytest.fixture
    def request_bytes(self) -> bytes:
        return REQUEST

    @pytest.fixture
    async def reader(self, http_port: int, request_bytes: bytes) -> AsyncIterator[socket.socket]:
        """A client whose kernel takes as little as possible."""
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", http_port))
            await loop.sock_sendall(client, request_bytes)
            yield client

    @pytest.fixture
    def endless(self, scheduler: Any) -> Any:
        """Tokens until the request is paused or ended; then, once it goes on, its end."""

        async def play(sequence: Any) -> None:
            while not (sequence.paused.is_set() or sequence.cancelled.is_set()):
                await sequence.tokens(104)
                await asyncio.sleep(0.0005)
            await sequence.unpaused.wait()
            await scheduler.echo(sequence)

        scheduler.play = play
        return scheduler

    async def test_it_is_paused_and_goes_on_when_it_reads(self, gateway, endless, reader):
        await until(lambda: endless.sequences)
        await asyncio.wait_for(endless.sequences[0].paused.wait(), 20)
        answer = b""
        while not answer.endswith(b"0\r\n\r\n"):
            answer += await asyncio.wait_for(asyncio.get_running_loop().sock_recv(reader, 65_536), 20)
        assert b"[DONE]" in answer
        assert endless.sequences[0].pauses == [True, False]

    async def test_one_that_never_reads_is_ended(self, gateway, endless, reader):
        await until(lambda: endless.sequences)
        await asyncio.wait_for(endless.sequences[0].cancelled.wait(), 20)
        assert endless.sequences[0].cancel_reason == sequence_pb2.CANCEL_REASON_SLOW_CONSUMER

    async def test_one_that_reads_on_after_its_end_gets_whole_events_and_the_error(self, gateway, endless, reader):
        await until(lambda: endless.sequences)
        await asyncio.wait_for(endless.sequences[0].cancelled.wait(), 20)
        answer = b""
        while piece := await asyncio.wait_for(asyncio.get_running_loop().sock_recv(reader, 65_536), 20):
            answer += piece
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head.lower()
        chunks = list(dechunk(body))
        assert chunks.pop() == b""
        # A chunk is an event.
        events = [json.loads(chunk.removeprefix(b"data: ").removesuffix(b"\n\n")) for chunk in chunks]
        assert len(events) > 2
        assert events[-1]["error"]["code"] == "slow_consumer"
        assert all("choices" in event for event in events[:-1])

    @pytest.mark.parametrize("request_bytes", [LONG_REQUEST])
    async def test_an_answer_in_one_piece_keeps_its_place_until_it_is_read(
        self, gateway, scheduler, reader, http, until
    ):
        """It has more than buffers hold, and takes the only place, for as long as a client may read nothing."""

        async def has_room() -> bool:
            return (await http.post("/v1/completions", json={"prompt": "a"})).status_code == 200

        async def play(sequence: Any) -> None:
            for output in sequence.outputs:
                shown = sequence_pb2.TokenLogprobs(sequence_id=output.sequence_id, logprob=-0.5)
                await output.tokens(*[97] * 100, logprobs=[shown] * 100)
            scheduler.play = scheduler.echo
            for output in sequence.outputs:
                await output.end(sequence_pb2.END_REASON_LENGTH)

        scheduler.play = play
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(reader, 12), 20) == b"HTTP/1.1 200"
        assert not await has_room()
        await until(has_room)


async def test_a_gateway_that_stops_ends_its_streams_with_a_reason(scheduler, model_path, http_port, make_gateway):
    async def play(sequence: Any) -> None:
        await sequence.tokens(104)
        await sequence.cancelled.wait()

    scheduler.play = play
    gateway = await make_gateway(scheduler.port, http_port=http_port, drain_seconds=0.3)
    await gateway.until_ready()
    client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{http_port}/v1", api_key="none", max_retries=0)
    stream = await client.completions.create(model="bytes", prompt="hello", stream=True)
    stopping = asyncio.create_task(stop_gateway(gateway))
    with pytest.raises(openai.APIError, match="shutting down"):
        _ = [each async for each in stream]
    await client.close()
    await asyncio.wait_for(stopping, 10)
    with pytest.raises(ConnectionError):
        await connect(http_port)


async def test_a_gateway_that_stops_takes_nothing_new(scheduler, http_port, make_gateway):
    async def play(sequence: Any) -> None:
        await sequence.cancelled.wait()

    scheduler.play = play
    gateway = await make_gateway(scheduler.port, http_port=http_port, drain_seconds=1.0)
    await gateway.until_ready()
    client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{http_port}/v1", api_key="none", max_retries=0)
    running = asyncio.create_task(client.completions.create(model="bytes", prompt="hello"))
    await until(lambda: scheduler.sequences)
    stopping = asyncio.create_task(stop_gateway(gateway))

    async def refused() -> bool:
        try:
            await client.completions.create(model="bytes", prompt="hello", timeout=0.2)
        except openai.InternalServerError as error:
            return error.code == "draining"
        except openai.APITimeoutError:
            return False
        raise AssertionError

    while not await refused():
        pass
    with pytest.raises(openai.InternalServerError, match="shutting down"):
        await running
    await client.close()
    await stopping


async def test_a_gateway_that_hands_over_ends_connections_behind_their_answers(scheduler, http_port, make_gateway):
    goes_on = asyncio.Event()

    async def play(sequence: Any) -> None:
        await goes_on.wait()
        await scheduler.echo(sequence)

    scheduler.play = play
    gateway = await make_gateway(scheduler.port, http_port=http_port, handover_seconds=0.5)
    await gateway.until_ready()
    idle, _ = await connect(http_port)
    streaming = asyncio.create_task(answer_to(http_port, REQUEST))
    await until(lambda: scheduler.sequences)
    stopping = asyncio.create_task(stop_gateway(gateway))
    assert await asyncio.wait_for(idle.read(), 10) == b""
    goes_on.set()
    assert b"data: [DONE]" in await streaming
    await asyncio.wait_for(stopping, 20)


async def test_a_port_in_use_stops_the_start(scheduler, model_path, http_port, make_gateway):
    with socket.create_server(("127.0.0.1", http_port)), pytest.raises(ConfigError, match=r"^gateway\.http_port: "):
        await make_gateway(scheduler.port, http_port=http_port)


class TestKeys:
    @pytest.fixture
    async def guarded(
        self, scheduler: Any, model_path: Path, tmp_path: Path, http_port: int
    ) -> AsyncIterator[GuardedGateway]:
        async with guarded_gateway(scheduler, model_path, tmp_path / "tenants.db", http_port) as running:
            yield running

    async def test_a_key_is_asked_for(self, guarded, scheduler, http_port):
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{http_port}/v1", api_key=guarded.keys["alice"].text, max_retries=0
        ) as alice:
            assert (await alice.completions.create(model="bytes", prompt="hello")).choices[0].text == "hello"
            assert scheduler.sequences[0].submit.tenant_id == "alice"
            assert scheduler.sequences[0].submit.prefix_salt
            with pytest.raises(openai.AuthenticationError) as caught:
                await alice.with_options(api_key=new_key().text).models.list()
        assert caught.value.code == "invalid_api_key"
        assert caught.value.response.headers["www-authenticate"] == "Bearer"

    async def test_nobody_is_received_unasked(self, guarded, http_port):
        """The answer comes before the body."""
        reader, writer = await connect(http_port)
        writer.write(HEAD + b"content-length: 1000\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n"), 10)
        assert head.startswith(b"HTTP/1.1 401 ")
        writer.close()

    async def test_health_is_for_all(self, guarded, http_port):
        assert (await answer_to(http_port, HEALTH)).startswith(b"HTTP/1.1 200 ")


async def test_there_is_no_room_for_more_calls_than_it_takes():
    async def answer(exchange: Exchange, _caller: Any, _body: Any) -> None:
        await exchange.answer(200, b"{}", {})

    class Answering:
        def __getattr__(self, _: str) -> Any:
            return answer

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    scope = {"type": "http", "method": "GET", "path": "/v1/models", "headers": [], "root_path": ""}
    for max_calls, status in ((1, 200), (0, 429)):
        application = Application(Guard(None), Answering(), Answering(), max_calls=max_calls)
        await application({**scope}, receive, send)
        assert [each["status"] for each in sent if "status" in each] == [status]
        sent.clear()


def test_values_are_counted_outside_of_texts():
    assert read_object(json.dumps({"a": '[{,"\\' * MAX_VALUES}).encode())
    assert len(read_object(json.dumps({"a": [0] * (MAX_VALUES - 10)}).encode())["a"]) == MAX_VALUES - 10
    for body in (b'{"a": [' + b"{}," * MAX_VALUES + b"1]}", b'{"a": [' + b'"",' * MAX_VALUES + b"1]}"):
        with pytest.raises(InvalidFieldError, match="more than"):
            read_object(body)


async def test_two_gateways_share_the_port(scheduler, model_path, http_port):
    shared = {"shared_port": free_ports(1)[0], "http_port": http_port}
    one, two = [await start_gateway(config_for(model_path, scheduler.port, **shared)) for _ in range(2)]
    await one.until_ready()
    await two.until_ready()
    for gateway in (one, two):
        assert (await answer_to(http_port, b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"))[
            9:12
        ] == b"200"
        await stop_gateway(gateway)


async def test_a_refused_body_is_let_run_out_and_the_connection_goes_on(gateway, http_port):
    """The answer comes before the body has, which nobody wants; behind it the next request is answered."""
    reader, writer = await connect(http_port)
    writer.write(HEAD.replace(b"application/json", b"text/plain") + b"content-length: 100000\r\n\r\n")
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n"), 10)).startswith(b"HTTP/1.1 415 ")
    for _ in range(100):
        writer.write(b"a" * 1000)
        await writer.drain()
    writer.write(HEALTH)
    assert b"HTTP/1.1 200 " in await asyncio.wait_for(reader.read(), 10)
    writer.close()


async def test_a_refused_body_that_does_not_end_is_given_up(gateway, http_port, monkeypatch):
    monkeypatch.setattr(connection, "REST_SECONDS", 0.2)
    reader, writer = await connect(http_port)
    writer.write(HEAD.replace(b"application/json", b"text/plain") + b"content-length: 100000\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 415 ")
    writer.close()
