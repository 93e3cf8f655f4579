"""What stands before every call: who may come in, how many, and how long a request may take to arrive."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import grpc.aio
import pytest
import structlog
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection
from raw_http2 import (
    DEAF_GREETING,
    END_HEADERS,
    GREETING,
    HEADERS,
    Connections,
    call_headers,
    frame,
    listen_again,
    whole_call,
)

from tercet import error_status, errors
from tercet.door import Door
from tercet.rpc import open_channel
from tercet.v1 import inference_pb2, inference_pb2_grpc, models_pb2, models_pb2_grpc

GET = "/tercet.v1.Models/GetModel"
GENERATE = "/tercet.v1.Inference/Generate"
CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
REFLECT = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


class Services(models_pb2_grpc.ModelsServicer, inference_pb2_grpc.InferenceServicer):
    """Counts the requests that reach it."""

    def __init__(self) -> None:
        self.reached = 0
        self.left = 0
        self.port = 0

    async def GetModel(self, request, context):
        self.reached += 1
        return models_pb2.Model(name=request.name)

    async def ListModels(self, request, context):
        raise RuntimeError("a bug")

    async def Generate(self, request, context):
        self.reached += 1
        try:
            for text in request.prompt.split():
                await context.write(inference_pb2.GenerateEvent(delta=inference_pb2.Delta(text=text)))
            if request.request_id == "hold":
                await asyncio.Event().wait()
        finally:
            self.left += 1

    async def GenerateOnce(self, request, context):
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")


@contextlib.asynccontextmanager
async def behind(door: Door):
    """Services behind a door, and a channel to them."""
    server = grpc.aio.server(interceptors=[door])
    services, health = Services(), HealthServicer()
    models_pb2_grpc.add_ModelsServicer_to_server(services, server)
    inference_pb2_grpc.add_InferenceServicer_to_server(services, server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    reflection.enable_server_reflection([reflection.SERVICE_NAME], server)
    services.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with open_channel(f"127.0.0.1:{services.port}") as channel:
        yield services, channel
    await server.stop(0)


async def refusal(call) -> errors.RequestError:
    """The typed error with which a call ends that has not even sent a request."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call.read(), 20)
    details = dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
    return error_status.from_status(status_pb2.Status.FromString(details))


def opened(channel, method):
    """A call that sends no request."""
    return channel.stream_stream(method)()


async def until(check) -> None:
    for _ in range(2000):
        if check():
            return
        await asyncio.sleep(0.01)
    pytest.fail("not within 20 s")


async def test_calls_of_every_shape_come_through():
    async with behind(Door()) as (services, channel):
        models, inference = models_pb2_grpc.ModelsStub(channel), inference_pb2_grpc.InferenceStub(channel)
        assert (await models.GetModel(models_pb2.GetModelRequest(name="m"))).name == "m"
        request = inference_pb2.GenerateRequest(prompt="a b c")
        assert [event.delta.text async for event in inference.Generate(request)] == ["a", "b", "c"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await inference.GenerateOnce(request)
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, "no such thing")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await models.ListModels(models_pb2.ListModelsRequest())
        assert caught.value.code() is grpc.StatusCode.UNKNOWN
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/tercet.v1.Models/NoSuch")(b"", timeout=20)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert services.reached == 2


async def test_a_client_that_leaves_ends_its_handler():
    async with behind(Door()) as (services, channel):
        call = inference_pb2_grpc.InferenceStub(channel).Generate(
            inference_pb2.GenerateRequest(prompt="a", request_id="hold")
        )
        await call.read()
        call.cancel()
        await until(lambda: services.left == 1)


async def test_who_may_not_come_in_is_refused_before_anything_is_received():
    def nobody(context):
        raise errors.UnauthenticatedError("who are you?")

    async with behind(Door(nobody)) as (services, channel):
        for method in (GET, GENERATE):
            assert isinstance(await refusal(opened(channel, method)), errors.UnauthenticatedError)
        assert services.reached == 0
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("method", [GET, GENERATE, CHECK])
async def test_a_request_that_does_not_arrive_is_not_waited_for(method):
    async with behind(Door(request_s=0.2, open_request_s=0.2)) as (services, channel):
        assert isinstance(await refusal(opened(channel, method)), errors.DeadlineError)
        assert services.reached == 0


async def test_a_call_without_a_request_is_an_error():
    async with behind(Door()) as (_, channel):
        call = opened(channel, GET)
        await call.done_writing()
        assert isinstance(await refusal(call), errors.InvalidFieldError)


async def test_no_more_calls_than_it_can_bear_are_open():
    door = Door(max_calls=3)
    async with behind(door) as (_, channel):
        held = [opened(channel, GENERATE) for _ in range(3)]
        await until(lambda: door._calls == 3)
        error = await refusal(opened(channel, GET))
        assert isinstance(error, errors.QueueFullError)
        assert error.retry_after_s == 1.0
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        # Past the door; the health of this test has no such method.
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.List(health_pb2.HealthListRequest())
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert door.num_turned_away == 1
        held[0].cancel()
        await until(lambda: door._calls == 2)
        models = models_pb2_grpc.ModelsStub(channel)
        assert (await models.GetModel(models_pb2.GetModelRequest(name="m"))).name == "m"
        for call in held:
            call.cancel()
        await until(lambda: door._calls == 0)


@pytest.mark.parametrize("method", [WATCH, REFLECT])
async def test_streams_that_anybody_may_open_take_no_place_from_others(method):
    door = Door(max_calls=10, max_open_calls=2)
    async with behind(door) as (_, channel):
        held = [opened(channel, method) for _ in range(2)]
        await until(lambda: door._open_calls == 2)
        assert isinstance(await refusal(opened(channel, method)), errors.QueueFullError)
        # Anybody can bring that about: it says nothing about the room for others.
        assert door.num_turned_away == 0
        models = models_pb2_grpc.ModelsStub(channel)
        assert (await models.GetModel(models_pb2.GetModelRequest(name="m"))).name == "m"
        for call in held:
            call.cancel()
        await until(lambda: door._calls == door._open_calls == 0)


async def check(channel) -> None:
    """An honest probe."""
    health = health_pb2_grpc.HealthStub(channel)
    reply = await health.Check(health_pb2.HealthCheckRequest(), timeout=20)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("greeting", [GREETING, DEAF_GREETING])
async def test_probes_that_do_not_end_are_bounded_and_take_no_place(greeting):
    """Half ones, or ones whose answers nobody reads."""
    door = Door(max_calls=1, max_open_calls=5, open_request_s=1000)
    streams = range(1, 25, 2)
    if greeting is DEAF_GREETING:
        probes = [whole_call(stream, CHECK.encode(), b"") for stream in streams]
    else:
        probes = [frame(HEADERS, END_HEADERS, stream, call_headers(CHECK.encode())) for stream in streams]
    async with behind(door) as (services, channel), Connections(services.port) as crowd:
        await crowd.open(greeting + b"".join(probes))
        await until(lambda: crowd.received[0].count(b"too many calls are open here") == 7)
        assert door._probes == 5
        # Neither honest probes meet them, nor those with a key, nor those without.
        for _ in range(10):
            await check(channel)
        models = models_pb2_grpc.ModelsStub(channel)
        assert (await models.GetModel(models_pb2.GetModelRequest(name="m"), timeout=20)).name == "m"
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=20)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
        # Each further connection may have one.
        await crowd.open(greeting + probes[0] + probes[1])
        await until(lambda: b"too many calls are open here" in crowd.received[1])
        assert door._probes == 6
    await until(lambda: door._calls == door._open_calls == door._probes == 0)
    assert not door._probes_of
    assert door.num_turned_away == 0


async def test_an_answer_that_nobody_reads_ends_its_call_with_a_reason(monkeypatch):
    seen = structlog.testing.LogCapture()
    monkeypatch.setattr("tercet.door.log", structlog.wrap_logger(None, processors=[seen]))
    door = Door(stall_s=0.2)
    async with behind(door) as (services, channel), Connections(services.port) as deaf:
        request = models_pb2.GetModelRequest(name="m").SerializeToString()
        await deaf.open(DEAF_GREETING + whole_call(1, GET.encode(), request))
        await until(lambda: [entry["reason"] for entry in seen.entries] == ["SLOW_CONSUMER"])
        # What it has not read is here, and so is its call.
        assert door._calls == 1
        models = models_pb2_grpc.ModelsStub(channel)
        assert (await models.GetModel(models_pb2.GetModelRequest(name="m"), timeout=20)).name == "m"
        deaf.send(listen_again(1))
        await until(lambda: b"the client read nothing for 0.2 s" in deaf.received[0])
        await until(lambda: door._calls == 0)


async def test_refusals_cannot_fill_a_log(monkeypatch):
    seen = structlog.testing.LogCapture()
    monkeypatch.setattr("tercet.door.log", structlog.wrap_logger(None, processors=[seen]))
    monkeypatch.setattr("tercet.door.TELL_SECONDS", 0.5)

    def nobody(context):
        raise errors.UnauthenticatedError("who are you?")

    door = Door(nobody)
    async with behind(door) as (_, channel):
        for _ in range(20):
            await refusal(opened(channel, GET))
        await until(lambda: door._refusals.quiet)
        await refusal(opened(channel, GET))
    first, *counted, last = seen.entries
    assert (first["event"], first["reason"], first["method"]) == ("call_refused", "UNAUTHENTICATED", GET)
    assert {entry["event"] for entry in counted} == {"calls_refused"}
    assert sum(entry["UNAUTHENTICATED"] for entry in counted) == 19
    assert last["event"] == "call_refused"
