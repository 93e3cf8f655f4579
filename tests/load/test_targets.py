"""Both kinds of servers over real connections: figures are those of the server's script, requests arrive as asked."""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tercet.errors import LoadError
from tercet.load.ask import Ask
from tercet.load.grpc_target import GrpcTarget
from tercet.load.openai_target import OpenAiTarget
from tercet.load.principals import Principal
from tercet.load.runner import run_on
from tercet.load.slo import Slo
from tercet.load.summary import PointSummary
from tercet.load.target import AnswerError, Begun, Ended, Event, Piece
from tercet.load.workload import Workload
from tercet.messages import ChatMessage
from tests.load.fake_servers import gateway, http_server
from tests.load.scripted import Script
from tests.load.virtual_time import VirtualLoop, run_virtual
from tests.load.wire import Wire, Wired

TOKENS = 6
ASK = Ask(0, 0.0, Principal(), (1000, 1001), 2, TOKENS, seed=5)


@asynccontextmanager
async def over_grpc(wire: Wire) -> AsyncIterator[Any]:
    async with gateway(wire) as (_, address), GrpcTarget(address) as target:
        yield target


@asynccontextmanager
async def over_http(wire: Wire) -> AsyncIterator[Any]:
    async with http_server(wire) as (_, url), OpenAiTarget(url) as target:
        yield target


def exact(values: list[float], percent: float) -> float:
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


@pytest.mark.parametrize("over", [over_grpc, over_http])
def test_every_percentile_is_that_of_the_server(over: Callable[[Wire], Any]) -> None:
    rng = random.Random(4)
    scripts = [Script(rng.uniform(0.2, 2.0), rng.uniform(0.02, 0.3)) for _ in range(150)]
    wire = Wire(lambda number: scripts[number])
    workload = Workload(
        input="constant:9", output=f"constant:{TOKENS}", arrivals="constant", rates=(25.0,), requests=len(scripts)
    )

    async def work(loop: VirtualLoop) -> PointSummary:
        loop.stand_still_while(lambda: wire.busy)
        async with over(wire) as target:
            return (await run_on(workload, Wired(target, wire), now=loop.time)).summary.points[0]

    point = run_virtual(work)
    assert point.outcomes["completed"] == len(scripts)
    first, gap = [each.first_s or 0.0 for each in scripts], [each.gap_s for each in scripts]
    for name, values in (
        ("ttft_ms", first),
        ("tpot_ms", gap),
        ("gap_ms", [each for each in gap for _ in range(TOKENS - 1)]),
        ("largest_gap_ms", gap),
        ("e2e_ms", [one + (TOKENS - 1) * two for one, two in zip(first, gap, strict=True)]),
    ):
        for percent in (50, 95, 99):
            found = getattr(getattr(point, name), f"p{percent}")
            assert found == pytest.approx(1e3 * exact(values, percent), rel=0.02), (name, percent)
    assert point.cached_tokens == len(scripts)


async def answer(target: Any, ask: Ask) -> list[Event]:
    return [event async for event in target.stream(ask)]


async def test_a_gateway_is_asked_as_the_request_says() -> None:
    wire = Wire(lambda number: Script(0.0, 0.0))
    principal = Principal("alice", "key-a", "batch", -3)
    ask = Ask(0, 0.0, principal, (1000, 1001), 2, 3, seed=5, ignore_eos=True, temperature=0.5, timeout_s=60.0)
    async with (
        gateway(wire) as (served, address),
        GrpcTarget(address, api_key="own", connections=2, cache_salt="mine") as target,
    ):
        described = await target.describe()
        assert (described.model, described.revision, described.max_model_len) == ("m", "r9", 4096)
        events = await answer(target, ask)
        await answer(target, Ask(0, 0.0, Principal(), "Once", None, 1, seed=5))
    assert events == [Begun("r-1", 2), Piece(1), Piece(1), Piece(1), Ended("length", 2, 3, 1, 0.125)]
    request, text = served.requests
    assert served.keys == ["Bearer key-a", "Bearer own"]
    assert (list(request.token_ids.ids), request.stop.max_tokens, request.stop.ignore_eos) == ([1000, 1001], 3, True)
    assert (request.sampling.temperature, request.sampling.seed) == (0.5, 5)
    assert (request.traffic_class, request.priority, text.prompt) == ("batch", -3, "Once")
    assert {each.cache_salt for each in served.requests} == {"mine"}


async def test_what_a_mesh_says_of_itself_is_sampled() -> None:
    async with gateway(Wire(lambda number: Script())) as (served, address), GrpcTarget(address) as target:
        interactive = served.traffic.classes.add(name="interactive")
        interactive.targets.ttft_seconds = 0.5
        served.traffic.classes.add(name="batch")
        assert await target.limits() == {"interactive": Slo(ttft_s=0.5)}
        first = await target.look()
        assert first is not None
        assert (first.queued, first.running, first.kv_used, first.kv_cached, first.kv_free) == (4, 3, 30, 20, 10)
        assert first.tokens_per_s is None
        second = await target.look()
        assert second is not None
        assert second.tokens_per_s == 0.0


async def test_an_openai_server_is_asked_as_the_request_says() -> None:
    wire = Wire(lambda number: Script(0.0, 0.0))
    principal = Principal("alice", "key-a", "batch", -3)
    chat = Ask(0, 0.0, principal, (ChatMessage("user", "Hi"),), None, 2, seed=5, ignore_eos=False, temperature=0.5)
    async with http_server(wire) as (served, url), OpenAiTarget(url) as target:
        assert (await target.describe()).takes_tokens
        events = await answer(target, ASK)
        assert await answer(target, chat) == [Begun("r-1"), Piece(), Piece(), Ended("length", 2, 2, 1)]
    assert events == [Begun("r-1"), *[Piece()] * TOKENS, Ended("length", 2, TOKENS, 1)]
    (path, headers, body), (chat_path, chat_headers, chat_body) = served.requests
    assert (path, chat_path) == ("/v1/completions", "/v1/chat/completions")
    assert (body["prompt"], body["max_tokens"], body["ignore_eos"], body["model"]) == ([1000, 1001], TOKENS, True, "m")
    assert "authorization" not in headers
    assert (chat_headers["authorization"], chat_headers["x-tercet-class"]) == ("Bearer key-a", "batch")
    assert (chat_body["priority"], chat_body["temperature"]) == (-3, 0.5)
    assert chat_body["messages"] == [{"role": "user", "content": "Hi"}]
    # What only some servers know is asked only where it asks for something.
    assert "ignore_eos" not in chat_body
    assert "priority" not in body


@pytest.mark.parametrize("serving", [gateway, http_server])
async def test_a_refusal_has_its_reason_and_a_time_to_retry(serving: Any) -> None:
    wire = Wire(lambda number: Script(error=AnswerError("QUEUE_FULL", "")))
    async with serving(wire) as (_, place), _target(place) as target:
        with pytest.raises(AnswerError) as raised:
            await answer(target, ASK)
    assert (raised.value.reason, raised.value.refused, raised.value.retry_after_s) == ("QUEUE_FULL", True, 1.5)


@pytest.mark.parametrize("serving", [gateway, http_server])
async def test_a_request_that_is_left_is_cancelled_and_a_deadline_ends_it(serving: Any) -> None:
    wire = Wire(lambda number: Script(first_s=None))
    async with serving(wire) as (served, place), _target(place) as target:
        events = target.stream(Ask(0, 0.0, Principal(), (1000,), 1, 3, seed=1))
        reading = asyncio.create_task(anext(events))
        await asyncio.wait_for(wire.first.wait(), 30)
        if serving is gateway:
            assert await reading == Begun("r-1", 2)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await events.aclose()
        await asyncio.wait_for(served.left.wait(), 30)
        with pytest.raises(AnswerError, match="DEADLINE_PASSED") as raised:
            await answer(target, Ask(0, 0.0, Principal(), (1000,), 1, 3, seed=1, timeout_s=0.1))
        assert not raised.value.refused


def _target(place: str) -> Any:
    return OpenAiTarget(place) if place.startswith("http") else GrpcTarget(place)


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (b"", "CONNECTION_LOST"),
        (b'data: {"error": {"message": "gone", "code": "worker_lost"}}\n\n', "WORKER_LOST"),
        (
            b'data: {"error": {"message": "gone", "code": 500, "type": "InternalServerError"}}\n\n',
            "InternalServerError",
        ),
        (b"data: {\n\n", "MALFORMED_EVENT"),
        (b"data: [1]\n\n", "MALFORMED_EVENT"),
    ],
)
async def test_a_stream_that_does_not_end_as_it_should_has_failed(tail: bytes, reason: str) -> None:
    async with http_server(Wire(lambda number: Script(0.0, 0.0))) as (served, url), OpenAiTarget(url) as target:
        served.tail = tail
        with pytest.raises(AnswerError) as raised:
            await answer(target, ASK)
    assert (raised.value.reason, raised.value.refused) == (reason, False)


async def test_texts_are_made_of_words_where_no_token_ids_are_taken() -> None:
    from tercet.load.sources import make_source

    async with http_server(Wire(lambda number: Script())) as (served, url), OpenAiTarget(url) as target:
        served.takes_tokens = False
        described = await target.describe()
        assert not described.takes_tokens
        assert described.more == {"version": "0.9"}
        source = await make_source(Workload(requests=1), target, described)
        made = source.make(0, 20, None, random.Random(1))
        assert isinstance(made.prompt, str)
        assert (made.tokens, len(made.prompt.split())) == (20, 19)
        served.tokenizes = False
        assert (await target.describe()).more == {"version": None}
        source = await make_source(Workload(requests=1), target, described)
        assert source.make(0, 20, None, random.Random(1)).tokens is None


@pytest.mark.parametrize(
    "make",
    [lambda: GrpcTarget("127.0.0.1:1"), lambda: OpenAiTarget("http://127.0.0.1:1")],
)
async def test_a_server_that_is_not_there_is_told(make: Callable[[], Any]) -> None:
    async with make() as target:
        with pytest.raises(LoadError, match=r"127\.0\.0\.1:1 does not"):
            await target.describe()
        with pytest.raises(AnswerError) as raised:
            await answer(target, ASK)
    assert (raised.value.reason, raised.value.refused) in (("GATEWAY_LOST", False), ("CONNECTION_LOST", False))


@pytest.mark.parametrize("knows_salts", [True, False])
async def test_a_salt_is_sent_to_servers_that_know_it(knows_salts: bool) -> None:
    async with (
        http_server(Wire(lambda number: Script(0.0, 0.0))) as (served, url),
        OpenAiTarget(url, cache_salt="mine") as target,
    ):
        served.knows_salts = knows_salts
        assert (await target.describe()).takes_tokens
        await answer(target, ASK)
    assert served.requests[0][2].get("cache_salt") == ("mine" if knows_salts else None)


def test_without_aiohttp_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(LoadError, match=r"aiohttp is not installed, .*tercet\[bench\]"):
        OpenAiTarget("http://127.0.0.1:1")


async def test_a_model_that_is_not_served_is_told() -> None:
    async with http_server(Wire(lambda number: Script())) as (_, url), OpenAiTarget(url, model="other") as target:
        with pytest.raises(LoadError, match="does not serve other"):
            await target.describe()
