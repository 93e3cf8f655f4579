"""The stream to the scheduler when one side of it, or one request on it, breaks."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from google.rpc import error_details_pb2, status_pb2
from grpc.aio._call import StreamStreamCall

from gateway.detokenizer import Detokenizer
from tercet.mesh.v1 import scheduler_pb2, sequence_pb2
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import models_pb2

BAD_TOKEN = 200


async def rest(call: Any) -> list[pb.GenerateEvent]:
    """What is left of a stream. Raises its status if that is not OK."""
    events = []
    while (event := await call.read()) is not grpc.aio.EOF:
        events.append(event)
    if await call.code() is not grpc.StatusCode.OK:
        trailers = await call.initial_metadata(), await call.trailing_metadata()
        raise grpc.aio.AioRpcError(await call.code(), *trailers, await call.details())
    return events


@pytest.mark.parametrize("method", ["push", "finish"])
async def test_a_bug_at_one_output_fails_that_request_alone(
    gateway: Any, scheduler: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[Detokenizer] = []
    push, finish = Detokenizer.push, Detokenizer.finish

    def fail(self: Detokenizer, token_id: int) -> str:
        if token_id == BAD_TOKEN:
            broken.append(self)
            if method == "push":
                raise ValueError("a bug")
        return push(self, token_id)

    def fail_late(self: Detokenizer) -> str:
        if self in broken:
            raise ValueError("a bug")
        return finish(self)

    monkeypatch.setattr(Detokenizer, "push", fail)
    monkeypatch.setattr(Detokenizer, "finish", fail_late)
    go_on = asyncio.Event()

    async def play(sequence: Any) -> None:
        await sequence.tokens(5)
        await go_on.wait()
        if sequence is scheduler.sequences[1]:
            await sequence.tokens(BAD_TOKEN, 5)
            if method == "push":
                await sequence.cancelled.wait()
                return
        await sequence.tokens(6)
        await sequence.end(sequence_pb2.END_REASON_LENGTH)

    scheduler.play = play
    with structlog.testing.capture_logs() as logs:
        beside = gateway.inference.Generate(pb.GenerateRequest(prompt="x"))
        await beside.read()
        failing = gateway.inference.Generate(pb.GenerateRequest(prompt="y", request_id="failing"))
        await failing.read()
        go_on.set()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rest(failing)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        if method == "push":
            await scheduler.sequences[1].cancelled.wait()
            assert scheduler.sequences[1].cancel_reason == sequence_pb2.CANCEL_REASON_FAULT
        else:
            assert scheduler.sequences[1].cancel_reason is None
        assert (await rest(beside))[-1].HasField("finished")
    assert not gateway.task.done()
    (fault,) = [event for event in logs if event["event"] == "output_failed"]
    assert fault["request_id"] == "failing"


async def test_a_link_that_cannot_write_is_lost_and_found_again(
    gateway: Any, scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler.play = lambda sequence: sequence.cancelled.wait()
    running = gateway.inference.Generate(pb.GenerateRequest(prompt="x"))
    await running.read()

    async def fail(self: Any, message: Any) -> None:
        raise asyncio.InvalidStateError("the call is over")

    with structlog.testing.capture_logs() as logs, monkeypatch.context() as patch:
        patch.setattr(StreamStreamCall, "write", fail)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="y")), 20)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rest(running)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    (lost,) = [event for event in logs if event["event"] == "scheduler_lost"]
    assert "the call is over" in lost["reason"]
    scheduler.play = scheduler.echo
    await gateway.until_ready()
    assert (await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="hello"))).outputs[0].text == "hello"


async def test_a_scheduler_that_says_goodbye_is_left_when_all_it_said_has_been_read(
    gateway: Any, scheduler: Any
) -> None:
    async def play(sequence: Any) -> None:
        if sequence is scheduler.sequences[0]:
            await sequence.tokens(5, 6)
            await sequence.end(sequence_pb2.END_REASON_LENGTH)
            await scheduler.send(scheduler_pb2.SchedulerMessage(goodbye=scheduler_pb2.Goodbye()))

    scheduler.play = play
    with structlog.testing.capture_logs() as logs:
        read = gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="x"))
        assert (await asyncio.wait_for(read, 20)).outputs[0].token_ids == [5, 6]
        scheduler.play = scheduler.echo
        await gateway.until_ready()
        assert (await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="hello"))).outputs[0].text == "hello"
    (lost,) = [event for event in logs if event["event"] == "scheduler_lost"]
    assert lost["reason"] == "the scheduler stops"


async def test_pools_of_other_models_and_revisions_do_not_hide_ours(
    gateway: Any, scheduler: Any, model: Any, until: Any
) -> None:
    def pool(name: str, revision: str, workers_live: int, max_model_len: int) -> scheduler_pb2.Pool:
        return scheduler_pb2.Pool(
            model=name, model_revision=revision, workers_live=workers_live, max_model_len=max_model_len
        )

    async def limit_is(expected: int) -> bool:
        return (await gateway.models.GetModel(models_pb2.GetModelRequest(name="bytes"))).max_model_len == expected

    async def reason() -> str:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="x"))
        status = status_pb2.Status.FromString(dict(caught.value.trailing_metadata())["grpc-status-details-bin"])
        info = error_details_pb2.ErrorInfo()
        assert status.details[0].Unpack(info)
        return info.reason

    scheduler.max_model_len = 100
    scheduler.other_pools = [
        pool(model.name, "older", 2, 20), pool(model.name, "newer", 1, 10), pool("other", model.revision, 3, 5),
    ]  # fmt: skip
    await scheduler.send_pools()
    await until(lambda: limit_is(100))
    assert (await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="hello"))).outputs[0].text == "hello"
    # Ours is away for a while: not the fault of the files.
    scheduler.workers_live = 0
    await scheduler.send_pools()
    await gateway.until_ready(False)
    assert await reason() == "NO_WORKER"
    # Nothing of ours, and others of the model that live.
    scheduler.revision, scheduler.workers_live = "newest", 1
    await scheduler.send_pools()

    async def mismatch() -> bool:
        return await reason() == "REVISION_MISMATCH"

    await until(mismatch)
    # Others of the model that do not live are no reason to blame the files.
    scheduler.other_pools, scheduler.workers_live = [pool("other", model.revision, 1, 5)], 0
    await scheduler.send_pools()

    async def no_worker() -> bool:
        return await reason() == "NO_WORKER"

    await until(no_worker)
    # None of ours: there may be one behind an address that has not answered, until all have.
    scheduler.name = "another"
    await scheduler.send_pools()
    await until(no_worker)
    scheduler.complete = True
    await scheduler.send_pools()

    async def not_found() -> bool:
        return await reason() == "MODEL_NOT_FOUND"

    await until(not_found)
    # Of ours one has been there, and may come back.
    scheduler.name = model.name
    await scheduler.send_pools()
    await until(no_worker)
