"""Five hundred clients that leave in one moment: whoever goes on waits for a few of them at a time, not for all."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import grpc.aio
import pytest

from gateway import sent_requests
from gateway.generation import Generation
from gateway.stream import Stream
from tercet.mesh.v1 import scheduler_pb2
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import operations_pb2

from .loop_turns import Turns

CLIENTS = 500
# That are seen to in one turn of the event loop, as the gateway says.
FEW = 4


@pytest.mark.parametrize("takes_cancels", [True, False])
async def test_steady_tokens_wait_for_few_of_those_that_leave(
    scheduler: Any, make_gateway: Any, stop_gateway: Any, monkeypatch: pytest.MonkeyPatch, takes_cancels: bool
) -> None:
    scheduler.takes_cancels = takes_cancels
    gateway = await make_gateway(scheduler.port)
    await gateway.until_ready()
    scheduler.play = lambda sequence: sequence.cancelled.wait()
    scheduler.answer_cancels = False
    staying = gateway.inference.Generate(pb.GenerateRequest(prompt="x"))
    assert (await staying.read()).HasField("accepted")
    steady = scheduler.sequences[0]
    calls = [gateway.inference.Generate(pb.GenerateRequest(prompt="x")) for _ in range(CLIENTS)]
    await asyncio.gather(*(call.read() for call in calls))

    turns = Turns()
    monkeypatch.setattr(Generation, "close", turns.counted("ends", Generation.close))
    close_cancelled = sent_requests._close_cancelled
    monkeypatch.setattr(sent_requests, "_close_cancelled", turns.counted("last words", close_cancelled))
    for call in calls:
        call.cancel()
    leaving = scheduler.sequences[1:]
    await asyncio.gather(*(sequence.cancelled.wait() for sequence in leaving))
    await steady.tokens(5)
    assert (await staying.read()).delta.token_ids == [5]

    done = [scheduler_pb2.CancelDone(request_key=each.submit.request_key, found=True) for each in leaving]
    if takes_cancels:
        answer = scheduler_pb2.CancelsDone(done=done)
        await scheduler.send(scheduler_pb2.SchedulerMessage(cancels_done=answer))
    else:
        for each in done:
            await scheduler.send(scheduler_pb2.SchedulerMessage(cancel_done=each))
    # Behind the answers, and read before all of those have been seen to.
    await steady.tokens(6)
    assert (await staying.read()).delta.token_ids == [6]
    turns.stop()

    # What is left of the ration of one turn, and that of the next, may be between two of ours.
    assert 0 < turns.most["ends"] <= 2 * FEW
    assert 0 < turns.most["last words"] <= 2 * FEW
    await stop_gateway(gateway)


async def test_a_client_that_leaves_alone_is_seen_to_at_once(gateway: Any, scheduler: Any) -> None:
    scheduler.play = lambda sequence: sequence.cancelled.wait()
    call = gateway.inference.Generate(pb.GenerateRequest(prompt="x"))
    await call.read()
    call.cancel()
    await asyncio.wait_for(scheduler.sequences[0].cancelled.wait(), 20)
    with pytest.raises(asyncio.CancelledError):
        await call.read()


async def test_nothing_of_a_request_waits_for_the_garbage_collector(
    gateway: Any, scheduler: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: weakref.WeakSet[Stream] = weakref.WeakSet()
    num_made = 0
    made = Stream.__init__

    def note(self: Stream, *given: Any, **options: Any) -> None:
        nonlocal num_made
        num_made += 1
        made(self, *given, **options)
        streams.add(self)

    async def all_gone() -> bool:
        return not streams

    monkeypatch.setattr(Stream, "__init__", note)
    gc.disable()
    try:
        async for _ in gateway.inference.Generate(pb.GenerateRequest(prompt="one that ends by itself")):
            pass
        await asyncio.wait_for(until(all_gone), 20)
        scheduler.play = lambda sequence: sequence.cancelled.wait()
        call = gateway.inference.Generate(pb.GenerateRequest(prompt="one whose client leaves"))
        await call.read()
        call.cancel()
        await asyncio.wait_for(until(all_gone), 20)
        call = gateway.inference.Generate(pb.GenerateRequest(prompt="one that is ended", request_id="r"))
        await call.read()
        await gateway.operations.CancelGeneration(operations_pb2.CancelGenerationRequest(request_id="r"))
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
        await asyncio.wait_for(until(all_gone), 20)
        assert num_made == 3
    finally:
        gc.enable()
