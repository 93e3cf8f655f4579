"""Each cancel leaves a row, whoever cancelled and wherever it found the request; and what only one side knows ends."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog

from gateway import link as link_module
from gateway import sent_requests
from gateway.cancel import CancelOrigin, Cancels, CancelTrail
from gateway.sent_requests import MAX_DOUBTS
from tercet.ledger.cancellations import read_cancellations
from tercet.ledger.ledger import Ledger
from tercet.ledger.row import Cancelled
from tercet.mesh.v1 import scheduler_pb2, sequence_pb2
from tercet.sections import LedgerSettings
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import operations_pb2

from .conftest import Gateway, config_for, start_gateway, stop_gateway
from .guarded_gateway import GuardedGateway

TRAIL = CancelTrail(CancelOrigin.DEADLINE, ("DECODE",), 0.0, 0.25, 0.5)


class Clock:
    def __init__(self) -> None:
        self.now = 10.0

    def __call__(self) -> float:
        return self.now


def test_of_several_cancels_the_first_counts_and_is_answered_once() -> None:
    clock = Clock()
    cancels = Cancels(clock)
    cancels.answer(TRAIL, 3)
    assert not list(cancels)
    cancels.ask(CancelOrigin.CLIENT)
    clock.now = 11.0
    cancels.ask(CancelOrigin.DEADLINE)
    cancels.ask(CancelOrigin.STOP_STRING, 1)
    cancels.answer(TRAIL, 3)
    clock.now = 12.0
    cancels.answer(None, None)
    whole, output = cancels
    assert (whole.origin, whole.seen_at, whole.done_at, whole.trail) == (CancelOrigin.CLIENT, 10.0, 11.0, TRAIL)
    assert (output.output_index, output.seen_at, output.done_at) == (1, 11.0, None)


def test_what_the_scheduler_cancels_by_itself_is_noted_once_with_the_blocks_of_all_outputs() -> None:
    cancels = Cancels(Clock())
    cancels.note(dataclasses.replace(TRAIL, freed_s=0.125), 3)
    cancels.note(TRAIL, 4)
    (only,) = cancels
    assert (only.origin, only.seen_at, only.done_at) == (CancelOrigin.DEADLINE, 9.875, None)
    assert (only.trail, only.blocks_freed) == (TRAIL, 7)


@dataclasses.dataclass
class Kept:
    """A gateway, and the ledger it writes."""

    gateway: Gateway
    path: Path

    async def of(self, request_id: str) -> list[Cancelled]:
        """The cancels of a request, once there are some."""
        while True:
            found = [each for each in await asyncio.to_thread(self._read) if each.request_id == request_id]
            if found:
                return found
            await asyncio.sleep(0.01)

    def _read(self) -> list[Cancelled]:
        ledger = Ledger(str(self.path), lambda: 0.0)
        try:
            return read_cancellations(ledger, 0.0, 1e12, limit=1_000)
        finally:
            ledger.close()

    async def listed(self, **asked: Any) -> list[Any]:
        request = operations_pb2.ListCancellationsRequest(**asked)
        return list((await self.gateway.operations.ListCancellations(request)).cancellations)


@pytest.fixture
async def kept(scheduler: Any, model_path: Path, tmp_path: Path) -> AsyncIterator[Kept]:
    path = tmp_path / "ledger.db"
    config = config_for(model_path, scheduler.port, drain_seconds=0.2)
    gateway = await start_gateway(dataclasses.replace(config, ledger=LedgerSettings(database=str(path))))
    await gateway.until_ready()
    yield Kept(gateway, path)
    await stop_gateway(gateway)


async def forever(sequence: Any) -> None:
    while not sequence.cancelled.is_set():
        await sequence.tokens(5)
        await asyncio.sleep(0.001)


async def silence(sequence: Any) -> None:
    """No token ever comes."""


def ask(kept: Kept, request_id: str, **fields: Any) -> Any:
    return kept.gateway.inference.Generate(pb.GenerateRequest(request_id=request_id, prompt="hello", **fields))


async def until_error(call: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        while True:
            await call.read()


async def test_a_client_that_goes_away(kept: Kept, scheduler: Any) -> None:
    scheduler.play = forever
    call = ask(kept, "gone")
    while not (await call.read()).HasField("delta"):
        pass
    call.cancel()
    (found,) = await kept.of("gone")
    cancel = found.cancellation
    assert (cancel.origin, cancel.output_index, cancel.blocks_freed) == ("client", None, 8)
    assert (cancel.states, cancel.release_s, cancel.freed_s, cancel.wasted_gpu_s) == (("DECODE",), 0.001, 0.25, 0.5)
    assert cancel.done_s is not None
    assert cancel.done_s > 0
    assert cancel.wasted_tokens is not None
    assert [each.request_id for each in await kept.listed()] == ["gone"]


async def test_a_client_that_is_not_accepted_yet(kept: Kept, scheduler: Any) -> None:
    scheduler.accept = False
    call = ask(kept, "waiting")
    await scheduler.submitted.wait()
    call.cancel()
    (found,) = await kept.of("waiting")
    assert (found.cancellation.origin, found.cancellation.wasted_tokens) == ("client", 0)


async def test_an_operator(kept: Kept, scheduler: Any) -> None:
    scheduler.play = forever
    call = ask(kept, "stopped")
    await call.read()
    request = operations_pb2.CancelGenerationRequest(request_id="stopped")
    assert (await kept.gateway.operations.CancelGeneration(request)).found
    await until_error(call)
    (found,) = await kept.of("stopped")
    assert found.cancellation.origin == "operator"


async def test_a_deadline_that_the_gateway_sees(kept: Kept, scheduler: Any, until_late: Any) -> None:
    scheduler.play = silence
    request = pb.GenerateRequest(request_id="late", prompt="hello")
    await until_late(lambda timeout_s: kept.gateway.inference.Generate(request, timeout=timeout_s))
    (found,) = await kept.of("late")
    assert found.cancellation.origin == "deadline"


async def test_a_deadline_that_the_scheduler_sees(kept: Kept, scheduler: Any) -> None:
    async def late(sequence: Any) -> None:
        trail = scheduler_pb2.CancelTrail(
            reason=sequence_pb2.CANCEL_REASON_DEADLINE,
            states=[scheduler_pb2.SEQUENCE_STATE_QUEUED],
            freed_us=1_500_000,
        )
        failure = sequence_pb2.Failure(reason="DEADLINE_PASSED", message="too late")
        await sequence.end(sequence_pb2.END_REASON_CANCELLED, failure=failure, trail=trail)

    scheduler.play = late
    await until_error(ask(kept, "late"))
    (found,) = await kept.of("late")
    cancel = found.cancellation
    assert (cancel.origin, cancel.states, cancel.release_s, cancel.freed_s) == ("deadline", ("QUEUED",), None, 1.5)
    # The gateway has not asked, so nobody answered.
    assert cancel.done_s is None
    assert cancel.blocks_freed == 4


async def test_a_stop_string_is_of_one_output(kept: Kept, scheduler: Any, model: Any) -> None:
    async def play(sequence: Any) -> None:
        first, second = sequence.outputs
        await second.tokens(*model.tokenizer.encode("one END two", add_bos=False))
        await second.stopped.wait()
        await first.tokens(*model.tokenizer.encode("on and on", add_bos=False))
        await first.end(sequence_pb2.END_REASON_LENGTH)

    scheduler.play = play
    sampling = pb.SamplingParams(n=2, seed=5)
    call = ask(kept, "enough", sampling=sampling, stop=pb.StopConditions(strings=["END"]))
    while await call.read() is not grpc.aio.EOF:
        pass
    (found,) = await kept.of("enough")
    cancel = found.cancellation
    assert (cancel.origin, cancel.output_index, cancel.states) == ("stop_string", 1, ("DECODE",))
    assert cancel.blocks_freed == 4
    assert cancel.done_s is not None
    # The request as a whole was served.
    assert cancel.wasted_tokens is None


async def test_a_scheduler_that_is_lost(kept: Kept, scheduler: Any) -> None:
    scheduler.play = forever
    call = ask(kept, "lost")
    await call.read()
    await scheduler.stop()
    await until_error(call)
    (found,) = await kept.of("lost")
    assert (found.cancellation.origin, found.cancellation.done_s) == ("scheduler_lost", None)


async def test_a_gateway_that_stops(kept: Kept, scheduler: Any) -> None:
    scheduler.play = forever
    call = ask(kept, "running")
    await call.read()
    kept.gateway.stopping.set()
    await until_error(call)
    (found,) = await kept.of("running")
    assert found.cancellation.origin == "shutdown"


async def test_they_are_listed_the_newest_first(kept: Kept, scheduler: Any) -> None:
    scheduler.play = silence
    for number in range(3):
        call = ask(kept, f"r{number}")
        await call.read()
        call.cancel()
        await kept.of(f"r{number}")
    assert [each.request_id for each in await kept.listed()] == ["r2", "r1", "r0"]
    assert [each.request_id for each in await kept.listed(max_cancellations=1)] == ["r2"]
    assert not await kept.listed(origin="operator")
    assert not await kept.listed(tenant="alice")
    (newest, *_) = await kept.listed(origin="client")
    assert list(newest.states) == ["DECODE"]
    assert (newest.freed_seconds, newest.HasField("output_index")) == (0.25, False)


async def test_only_operators_see_them(guarded: GuardedGateway) -> None:
    request = operations_pb2.ListCancellationsRequest()
    refused = await guarded.refused("Operations/ListCancellations", "alice", request)
    assert refused.code is grpc.StatusCode.PERMISSION_DENIED
    (answer,) = await guarded.call("Operations/ListCancellations", "boss", request)
    assert not answer.cancellations


async def test_what_the_scheduler_does_not_know_ends(
    kept: Kept, scheduler: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler.play = silence
    monkeypatch.setattr(link_module, "RECONCILE_S", 0.02)
    # The next stream is the first with the shorter time.
    await scheduler.stop()
    await kept.gateway.until_ready(False)
    await scheduler.start()
    await kept.gateway.until_ready()
    forgotten, known = ask(kept, "forgotten"), ask(kept, "known")
    for call in (forgotten, known):
        await call.read()
    first, second = (sequence.submit.request_key for sequence in scheduler.sequences)

    async def told() -> bool:
        return [first, second] in scheduler.running

    async def forgot() -> bool:
        return bool(scheduler.running[-1] == [second])

    await until(told)
    keys = [first, 4_711]
    await scheduler.send(scheduler_pb2.SchedulerMessage(unknown=scheduler_pb2.UnknownRequests(request_keys=keys)))
    await until_error(forgotten)
    assert await forgotten.code() is grpc.StatusCode.UNAVAILABLE
    (found,) = await kept.of("forgotten")
    assert found.cancellation.origin == "orphan"
    await until(forgot)
    assert not known.done()
    known.cancel()


async def unknown(scheduler: Any) -> None:
    """The scheduler says that it does not know the only request there is."""
    (sequence,) = scheduler.sequences
    keys = [sequence.submit.request_key]
    await scheduler.send(scheduler_pb2.SchedulerMessage(unknown=scheduler_pb2.UnknownRequests(request_keys=keys)))


async def cancelled_without_answer(kept: Kept, scheduler: Any) -> None:
    scheduler.play, scheduler.answer_cancels = silence, False
    call = ask(kept, "gone")
    await call.read()
    call.cancel()
    await scheduler.sequences[0].cancelled.wait()


async def test_a_cancel_whose_answer_is_lost_is_sent_again(kept: Kept, scheduler: Any) -> None:
    await cancelled_without_answer(kept, scheduler)
    scheduler.answer_cancels = True
    await unknown(scheduler)
    (found,) = await kept.of("gone")
    assert found.cancellation.origin == "client"
    assert found.cancellation.done_s is not None


async def test_a_cancel_that_is_never_answered_ends(kept: Kept, scheduler: Any) -> None:
    await cancelled_without_answer(kept, scheduler)
    with structlog.testing.capture_logs() as logs:
        for _ in range(MAX_DOUBTS):
            await unknown(scheduler)
        (found,) = await kept.of("gone")
    assert found.cancellation.origin == "client"
    assert found.cancellation.done_s is None
    events = [each["event"] for each in logs if "request_id" in each]
    assert events.count("cancel_sent_again") == MAX_DOUBTS - 1
    assert events.count("orphan_found") == 1


async def test_a_cancel_that_takes_long_is_told_once(
    kept: Kept, scheduler: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "RECONCILE_S", 0.02)
    monkeypatch.setattr(sent_requests, "UNANSWERED_S", 0.1)
    await scheduler.stop()
    await kept.gateway.until_ready(False)
    await scheduler.start()
    await kept.gateway.until_ready()
    with structlog.testing.capture_logs() as logs:
        await cancelled_without_answer(kept, scheduler)

        def told() -> list[Any]:
            return [each["origin"] for each in logs if each["event"] == "cancel_unanswered"]

        async def is_told() -> bool:
            return bool(told())

        async def is_compared_again() -> bool:
            return len(scheduler.running) > num_compared + 5

        await until(is_told)
        num_compared = len(scheduler.running)
        await until(is_compared_again)
    assert told() == ["client"]
