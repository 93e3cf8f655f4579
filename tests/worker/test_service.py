"""The worker's stream: hello, plans, fencing, and schedulers that break the protocol."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import torch

import worker.service
from tercet import rpc
from tercet.mesh.v1 import sequence_pb2, worker_pb2, worker_pb2_grpc
from tests.worker.recall_model import CONFIG, RecallModel, continuation
from worker.executor import Executor
from worker.host_steps import HostSteps
from worker.kv_cache import KVCache
from worker.service import WorkerService
from worker.steps import Computed

CPU = torch.device("cpu")
NUM_BLOCKS = 64
HELLO = worker_pb2.Hello(
    worker_id="w",
    num_blocks=NUM_BLOCKS,
    block_size=8,
    vocab_size=CONFIG.vocab_size,
    max_model_len=CONFIG.max_model_len,
)


class Scheduler:
    """The other end of a worker's stream."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call: Any = worker_pb2_grpc.WorkerStub(channel).Attach()
        self._events: list[worker_pb2.WorkerEvent] = []

    async def send(self, *commands: worker_pb2.WorkerCommand) -> None:
        await self.call.write(worker_pb2.WorkerCommands(commands=commands))

    async def open(self, epoch: int) -> worker_pb2.Hello:
        await self.send(worker_pb2.WorkerCommand(open=worker_pb2.Open(scheduler_epoch=epoch)))
        return (await self.event()).hello

    async def event(self) -> worker_pb2.WorkerEvent:
        """The next event. Fails the test if the stream ends instead."""
        while not self._events:
            message = await asyncio.wait_for(self.call.read(), 20)
            assert message is not grpc.aio.EOF, await self.call.code()
            self._events += message.events
        return self._events.pop(0)

    async def until(self, kind: str) -> list[worker_pb2.WorkerEvent]:
        """Events up to the first of a kind."""
        seen = [await self.event()]
        while seen[-1].WhichOneof("event") != kind:
            seen.append(await self.event())
        return seen

    async def end(self) -> tuple[grpc.StatusCode, str]:
        """How the stream ends."""
        try:
            while await asyncio.wait_for(self.call.read(), 20) is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError:
            pass
        return await self.call.code(), await self.call.details()


class Halting(HostSteps):
    """A device that computes as long as `goes` is set."""

    def __init__(self, kv_cache: KVCache) -> None:
        super().__init__(RecallModel(), kv_cache)  # type: ignore[arg-type]
        self.goes = threading.Event()
        self.goes.set()
        self.halted = threading.Event()

    def next(self) -> Computed | None:
        if not self.goes.is_set():
            self.halted.set()
            self.goes.wait()
        return super().next()


class Bench:
    """A worker's service on a free port."""

    def __init__(self) -> None:
        self.service = WorkerService()
        self.kv_cache = KVCache(CONFIG, NUM_BLOCKS, 8, torch.float32, CPU)
        self.steps = Halting(self.kv_cache)
        self.executor = Executor(self.steps, self.kv_cache, check_every_step=True)
        self.executor.start()
        self.server = rpc.Server()
        worker_pb2_grpc.add_WorkerServicer_to_server(self.service, self.server.grpc_server)

    async def start(self) -> grpc.aio.Channel:
        port = await self.server.start("127.0.0.1", 0, [worker_pb2.DESCRIPTOR], key="worker.port")
        return rpc.open_channel(f"127.0.0.1:{port}")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    made.steps.goes.set()
    await made.server.stop(0)
    made.executor.stop()


@pytest.fixture
async def channel(bench: Bench) -> AsyncIterator[grpc.aio.Channel]:
    bench.service.open(bench.executor, HELLO)
    async with await bench.start() as opened:
        yield opened


def new(sequence_id: int, tokens: list[int], max_length: int) -> worker_pb2.WorkerCommand:
    sequence = worker_pb2.NewSequence(sequence_id=sequence_id, token_ids=tokens, max_length=max_length)
    return worker_pb2.WorkerCommand(new_sequence=sequence)


def plan(plan_seq: int, steps: int, chunks: dict[int, int], join: list[int]) -> worker_pb2.WorkerCommand:
    items = [worker_pb2.Chunk(sequence_id=key, num_tokens=count) for key, count in chunks.items()]
    return worker_pb2.WorkerCommand(plan=worker_pb2.Plan(plan_seq=plan_seq, num_steps=steps, chunks=items, join=join))


def release(*ids: int) -> worker_pb2.WorkerCommand:
    cause = worker_pb2.RELEASE_CAUSE_CANCEL
    return worker_pb2.WorkerCommand(release=worker_pb2.Release(sequence_ids=ids, cause=cause))


def nan_temperature() -> worker_pb2.WorkerCommand:
    command = new(1, [1], 5)
    command.new_sequence.sampling.temperature = float("nan")
    return command


async def test_a_plan_runs_and_every_step_is_told(channel: grpc.aio.Channel) -> None:
    scheduler = Scheduler(channel)
    assert await scheduler.open(7) == HELLO
    await scheduler.send(new(1, [3, 1, 4], 8), plan(1, 32, {1: 3}, [1]))
    events = await scheduler.until("plan_done")
    tokens = [token for event in events for token in event.step.token_ids]
    assert tokens == continuation([3, 1, 4], 5)
    assert [event.step.step for event in events if event.HasField("step")] == [0, 1, 2, 3, 4]
    assert events[-1].plan_done.steps_run == 5
    assert events[-1].plan_done.blocks.used == 0


async def test_a_newer_scheduler_fences_the_older_one(channel: grpc.aio.Channel) -> None:
    older, newer = Scheduler(channel), Scheduler(channel)
    await older.open(1)
    await older.send(new(1, [3] * 20, 4000), plan(1, 10_000, {1: 20}, [1]))
    await older.until("step")
    await newer.open(2)
    assert (await older.end())[0] is grpc.StatusCode.ABORTED
    await newer.send(release(1))
    released = (await newer.until("released"))[-1].released
    assert not released.found
    assert released.blocks.used == 0


async def test_an_older_scheduler_is_turned_away(channel: grpc.aio.Channel) -> None:
    newer, older = Scheduler(channel), Scheduler(channel)
    await newer.open(5)
    await older.send(worker_pb2.WorkerCommand(open=worker_pb2.Open(scheduler_epoch=4)))
    assert (await older.end())[0] is grpc.StatusCode.FAILED_PRECONDITION
    await newer.send(release(9))
    assert (await newer.until("released"))[-1].released.sequence_id == 9


async def test_an_epoch_that_was_too_large_does_not_lock_the_worker(channel: grpc.aio.Channel) -> None:
    strange, honest = Scheduler(channel), Scheduler(channel)
    await strange.open(2**64 - 1)
    await strange.call.done_writing()
    assert (await strange.end())[0] is grpc.StatusCode.OK
    assert await honest.open(7) == HELLO


async def test_a_lost_stream_frees_its_sequences(bench: Bench, channel: grpc.aio.Channel) -> None:
    lost = Scheduler(channel)
    await lost.open(1)
    await lost.send(new(1, [3] * 20, 4000), plan(1, 10_000, {1: 20}, [1]))
    await lost.until("step")
    assert bench.kv_cache.pool.num_used > 0
    lost.call.cancel()
    # Nobody attaches again: the end of the stream must do it alone.
    for _ in range(400):
        if bench.kv_cache.pool.num_used == 0:
            break
        await asyncio.sleep(0.05)
    assert bench.kv_cache.pool.num_used == 0


async def test_a_device_that_hangs_says_no_hello_before_it_moves(bench: Bench, channel: grpc.aio.Channel) -> None:
    fenced = Scheduler(channel)
    await fenced.open(1)
    await fenced.send(new(1, [3] * 20, 4000), plan(1, 10_000, {1: 20}, [1]))
    await fenced.until("step")
    bench.steps.goes.clear()
    assert await asyncio.to_thread(bench.steps.halted.wait, 20)
    fenced.call.cancel()
    # One that gives up, and one that does not.
    impatient = Scheduler(channel)
    hello = asyncio.create_task(impatient.open(1))
    assert not (await asyncio.wait({hello}, timeout=0.5))[0]
    hello.cancel()
    impatient.call.cancel()
    patient = Scheduler(channel)
    hello = asyncio.create_task(patient.open(1))
    assert not (await asyncio.wait({hello}, timeout=0.5))[0]
    bench.steps.goes.set()
    assert await hello == HELLO
    await patient.send(release(1))
    released = (await patient.until("released"))[-1].released
    assert not released.found
    assert released.blocks.used == 0
    await patient.send(new(1, [5], 3), plan(1, 9, {1: 1}, [1]))
    events = await patient.until("plan_done")
    assert [token for event in events for token in event.step.token_ids] == continuation([5], 2)


async def test_one_that_waits_for_hello_is_fenced_like_any_other(bench: Bench, channel: grpc.aio.Channel) -> None:
    first, older, newer = Scheduler(channel), Scheduler(channel), Scheduler(channel)
    await first.open(1)
    await first.send(new(1, [3] * 20, 4000), plan(1, 10_000, {1: 20}, [1]))
    await first.until("step")
    bench.steps.goes.clear()
    assert await asyncio.to_thread(bench.steps.halted.wait, 20)
    await older.send(worker_pb2.WorkerCommand(open=worker_pb2.Open(scheduler_epoch=2)))
    assert (await first.end())[0] is grpc.StatusCode.ABORTED
    hello = asyncio.create_task(newer.open(3))
    assert (await older.end())[0] is grpc.StatusCode.ABORTED
    bench.steps.goes.set()
    assert await hello == HELLO


async def test_half_closing_ends_the_stream(channel: grpc.aio.Channel) -> None:
    scheduler = Scheduler(channel)
    await scheduler.open(1)
    await scheduler.call.done_writing()
    assert (await scheduler.end())[0] is grpc.StatusCode.OK


@pytest.mark.parametrize(
    "commands",
    [
        [],
        [plan(1, 1, {}, [])],
        [worker_pb2.WorkerCommand(open=worker_pb2.Open()), plan(1, 1, {}, [])],
        [worker_pb2.WorkerCommand()],
    ],
)
async def test_the_first_message_must_be_open(
    channel: grpc.aio.Channel, commands: list[worker_pb2.WorkerCommand]
) -> None:
    scheduler = Scheduler(channel)
    await scheduler.send(*commands)
    assert (await scheduler.end())[0] is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (worker_pb2.WorkerCommand(), "unexpected command"),
        (worker_pb2.WorkerCommand(open=worker_pb2.Open(scheduler_epoch=2)), "unexpected command"),
        (plan(1, 0, {}, []), "num_steps"),
        (
            worker_pb2.WorkerCommand(
                plan=worker_pb2.Plan(
                    plan_seq=1, num_steps=1, chunks=[worker_pb2.Chunk(sequence_id=2, num_tokens=9)] * 2
                )
            ),
            "two chunks of one sequence",
        ),
    ],
)
async def test_nonsense_ends_the_stream_and_the_next_scheduler_is_served(
    channel: grpc.aio.Channel, command: worker_pb2.WorkerCommand, problem: str
) -> None:
    scheduler = Scheduler(channel)
    await scheduler.open(1)
    await scheduler.send(command)
    code, details = await scheduler.end()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert problem in details
    again = Scheduler(channel)
    await again.open(2)
    await again.send(new(1, [5], 3), plan(1, 9, {1: 1}, [1]))
    events = await again.until("plan_done")
    assert [token for event in events for token in event.step.token_ids] == continuation([5], 2)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (new(1, [], 5), "no tokens"),
        (new(1, [1, 2], 2), "max_length"),
        (new(1, [1, CONFIG.vocab_size], 5), "token id"),
        (new(1, [1], CONFIG.max_model_len + 1), "max_length"),
        (nan_temperature(), "sampling"),
    ],
)
async def test_a_sequence_that_cannot_be_run_fails_alone(
    channel: grpc.aio.Channel, command: worker_pb2.WorkerCommand, problem: str
) -> None:
    scheduler = Scheduler(channel)
    await scheduler.open(1)
    await scheduler.send(command, new(2, [5], 3), plan(1, 9, {1: 1, 2: 1}, [1, 2]))
    events = await scheduler.until("plan_done")
    ended = {end.sequence_id: end for event in events for end in event.step.ended}
    assert ended[1].reason == sequence_pb2.END_REASON_FAILED
    assert problem in ended[1].failure.message
    assert ended[2].reason == sequence_pb2.END_REASON_LENGTH
    assert [token for event in events for token in event.step.token_ids] == continuation([5], 2)
    assert events[-1].plan_done.blocks.used == 0


async def test_a_stream_that_says_nothing_is_ended(channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.service, "OPEN_SECONDS", 0.05)
    scheduler = Scheduler(channel)
    assert (await scheduler.end())[0] is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_while_the_model_loads_schedulers_are_told_to_come_back(bench: Bench) -> None:
    async with await bench.start() as channel:
        scheduler = Scheduler(channel)
        assert await scheduler.end() == (grpc.StatusCode.UNAVAILABLE, "the worker is loading its model")


async def test_a_stopping_worker_says_so(bench: Bench, channel: grpc.aio.Channel) -> None:
    scheduler = Scheduler(channel)
    await scheduler.open(1)
    bench.service.close()
    assert await scheduler.end() == (grpc.StatusCode.UNAVAILABLE, "the worker stops")


async def test_a_huge_top_k_is_no_limit(channel: grpc.aio.Channel) -> None:
    scheduler = Scheduler(channel)
    await scheduler.open(1)
    command = new(1, [5], 4)
    command.new_sequence.sampling.temperature = 1e-3
    command.new_sequence.sampling.top_p = 1.0
    command.new_sequence.sampling.top_k = 2**32 - 1
    await scheduler.send(command, plan(1, 9, {1: 1}, [1]))
    events = await scheduler.until("plan_done")
    assert [token for event in events for token in event.step.token_ids] == continuation([5], 3)


async def test_a_draining_worker_runs_what_it_has_and_says_so(bench: Bench, channel: grpc.aio.Channel) -> None:
    scheduler = Scheduler(channel)
    await scheduler.open(1)
    await scheduler.send(new(1, [3] * 20, 4000), new(2, [5] * 4, 400), plan(1, 10_000, {1: 20, 2: 4}, [1, 2]))
    seen = await scheduler.until("step")
    draining = asyncio.create_task(bench.service.drain())
    seen += await scheduler.until("draining")
    # It goes on: what has no other place ends here.
    seen += await scheduler.until("step")
    assert not draining.done()
    # The scheduler moves one, and what it sent before it knew is obeyed, too.
    await scheduler.send(release(1), new(3, [9], 4), plan(2, 10_000, {3: 1}, [3]))
    while not {2, 3} <= {end.sequence_id for event in seen for end in event.step.ended}:
        seen.append(await scheduler.event())
    assert [event.released.found for event in seen if event.WhichOneof("event") == "released"] == [True]
    await asyncio.wait_for(draining, 20)
    bench.service.close()
    assert await scheduler.end() == (grpc.StatusCode.UNAVAILABLE, "the worker stops")


async def test_a_worker_without_a_scheduler_has_nothing_to_drain(bench: Bench, channel: grpc.aio.Channel) -> None:
    await asyncio.wait_for(bench.service.drain(), 20)


async def test_a_drain_ends_with_the_scheduler_that_left(bench: Bench, channel: grpc.aio.Channel) -> None:
    scheduler = Scheduler(channel)
    await scheduler.open(1)
    await scheduler.send(new(1, [3] * 20, 4000), plan(1, 10_000, {1: 20}, [1]))
    await scheduler.until("step")
    draining = asyncio.create_task(bench.service.drain())
    await scheduler.until("draining")
    assert not draining.done()
    scheduler.call.cancel()
    await asyncio.wait_for(draining, 20)


async def test_a_scheduler_that_finds_a_draining_worker_is_told_at_once(
    bench: Bench, channel: grpc.aio.Channel
) -> None:
    older, newer = Scheduler(channel), Scheduler(channel)
    await older.open(1)
    await older.send(new(1, [3] * 20, 4000), plan(1, 10_000, {1: 20}, [1]))
    await older.until("step")
    draining = asyncio.create_task(bench.service.drain())
    await older.until("draining")
    assert await newer.open(2) == HELLO
    assert (await newer.until("draining"))[-1].WhichOneof("event") == "draining"
    assert (await older.end())[0] is grpc.StatusCode.ABORTED
    await asyncio.wait_for(draining, 20)


async def test_it_is_found_once_a_scheduler_has_its_hello(bench: Bench, channel: grpc.aio.Channel) -> None:
    assert not bench.service.found
    scheduler = Scheduler(channel)
    await scheduler.send(plan(1, 1, {}, []))
    await scheduler.end()
    assert not bench.service.found
    scheduler = Scheduler(channel)
    await scheduler.open(1)
    while not bench.service.found:  # noqa: ASYNC110 - a plain flag
        await asyncio.sleep(0.01)
    # That it is gone again is the scheduler's matter.
    scheduler.call.cancel()
    await Scheduler(channel).open(2)
    assert bench.service.found
