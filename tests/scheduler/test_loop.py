"""The task around the core: order, timers, peers that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog

from scheduler import loop as loop_module
from scheduler.actions import Accepted, CancelDone, NewSequence, Plan, PoolUpdate, Refused, Release, TokenBatch, Unknown
from scheduler.admission import QueueBounds
from scheduler.core import Core
from scheduler.core_settings import CoreSettings
from scheduler.events import CancelReason, Event, GatewayAttached, Submitted, WorkerAttached
from scheduler.loop import MAX_UNREAD_BYTES, Loop
from scheduler.outbox import Outbox, OutboxClosedError
from scheduler.policy import Policy
from scheduler.simulator.small import submission, worker_info
from scheduler.simulator.worker import SimulatedWorker
from tercet.rpc import ANSWER_SECONDS, QUIET_SECONDS


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Loop]:
    loop = Loop(Core(CoreSettings(("host:1",), Policy(4, 0), QueueBounds(10, 1000))), time.monotonic)
    task = asyncio.create_task(loop.run())
    try:
        yield loop
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_events_become_messages_in_order() -> None:
    async with running() as loop:
        link, commands = loop.open_worker()
        loop.post(WorkerAttached(link, "host:1", worker_info()))
        gateway, messages = loop.open_gateway()
        loop.post(GatewayAttached(gateway, "gateway-1"))
        loop.post(Submitted(gateway, submission(1)))
        assert isinstance(await messages.take(), PoolUpdate)
        assert isinstance(await messages.take(), Accepted)
        assert isinstance(await commands.take(), NewSequence)
        assert isinstance(await commands.take(), Plan)
        assert loop.view().requests_running == 1


async def test_of_one_round_workers_hear_first_and_the_log_last() -> None:
    order: list[tuple[str, int]] = []
    with structlog.testing.capture_logs() as logs:

        async def read(name: str, outbox: Outbox[Any]) -> None:
            await outbox.take()
            order.append((name, len(logs)))

        async with running() as loop:
            link, commands = loop.open_worker()
            gateway, messages = loop.open_gateway()
            loop.post(GatewayAttached(gateway, "gateway-1"))
            loop.post(WorkerAttached(link, "host:1", worker_info()))
            for _ in range(2):
                await messages.take()
            # Until what has been logged is there.
            await asyncio.sleep(0.05)
            readers = [asyncio.create_task(read("gateway", messages)), asyncio.create_task(read("worker", commands))]
            await asyncio.sleep(0)
            # The first is refused, which is logged before there is a plan.
            loop.post(Submitted(gateway, submission(1, model="other")))
            loop.post(Submitted(gateway, submission(2)))
            await asyncio.wait_for(asyncio.gather(*readers), 10)
            await asyncio.sleep(0.05)
    assert order == [("worker", 2), ("gateway", 2)]
    assert logs[2]["event"] == "request_refused"


async def test_a_deadline_needs_no_event() -> None:
    async with running() as loop:
        link, commands = loop.open_worker()
        worker = SimulatedWorker(link, worker_info())
        loop.post(WorkerAttached(link, "host:1", worker_info()))
        gateway, messages = loop.open_gateway()
        loop.post(GatewayAttached(gateway, "gateway-1"))
        loop.post(Submitted(gateway, submission(1, deadline_s=0.05)))
        release = None
        while not isinstance(release, Release):
            release = await asyncio.wait_for(commands.take(), 10)
            worker.receive(release)
        events: list[Event] = worker.begin()
        for event in events:
            loop.post(event)
        message = None
        while not (isinstance(message, TokenBatch) and message.ends):
            message = await asyncio.wait_for(messages.take(), 10)
        failure = message.ends[0].failure
        assert failure is not None
        assert failure.reason == "DEADLINE_PASSED"
        assert loop.view().requests_running == 0


async def test_a_gateway_that_does_not_read_is_cut_off_and_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "MAX_UNREAD_BYTES", 1000)
    async with running() as loop:
        slow, blocked = loop.open_gateway()
        loop.post(GatewayAttached(slow, "slow"))
        for _ in range(5):
            loop.post(Submitted(slow, submission(1)))
        other, messages = loop.open_gateway()
        loop.post(GatewayAttached(other, "other"))
        assert isinstance(await asyncio.wait_for(messages.take(), 10), PoolUpdate)
        with pytest.raises(OutboxClosedError) as caught:
            await blocked.take()
        assert caught.value.overflowed


async def test_a_gateway_may_stand_still_for_as_long_as_pings_wait_for_it() -> None:
    """Eight workers with 64 sequences each, at 10 ms a step."""
    loop = Loop(Core(CoreSettings(("host:1",), Policy(4, 0), QueueBounds(10, 1000))), time.monotonic)
    _, outbox = loop.open_gateway()
    numbers = tuple(range(64))
    steps = int((QUIET_SECONDS + ANSWER_SECONDS) / 0.01)
    assert all(outbox.put(TokenBatch(numbers, numbers, ())) for _ in range(8 * steps))
    assert not outbox.put(TokenBatch(numbers, numbers, (), ((1, bytes(MAX_UNREAD_BYTES)),)))


async def test_drain_returns_at_once_when_nothing_runs_and_then_refuses() -> None:
    async with running() as loop:
        await asyncio.wait_for(loop.drain(60), 10)
        gateway, messages = loop.open_gateway()
        loop.post(GatewayAttached(gateway, "gateway-1"))
        loop.post(Submitted(gateway, submission(1)))
        await messages.take()
        refused = await messages.take()
        assert isinstance(refused, Refused)
        assert refused.failure.reason == "DRAINING"


async def test_drain_does_not_wait_for_a_worker_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "RELEASE_SECONDS", 0.05)
    async with running() as loop:
        link, commands = loop.open_worker()
        loop.post(WorkerAttached(link, "host:1", worker_info()))
        gateway, _ = loop.open_gateway()
        loop.post(GatewayAttached(gateway, "gateway-1"))
        loop.post(Submitted(gateway, submission(1)))
        await asyncio.wait_for(loop.drain(0.05), 10)
        sent = [await commands.take() for _ in range(4)]
        assert isinstance(sent[-1], Release)
        assert loop.view().requests_running == 1


async def test_what_a_gateway_does_not_know_is_cancelled_and_what_is_not_there_is_said() -> None:
    async with running() as loop:
        gateway, messages = loop.open_gateway()
        link, _ = loop.open_worker()
        loop.post(WorkerAttached(link, "host:1", worker_info(max_num_seqs=1)))
        loop.post(GatewayAttached(gateway, "gateway-1"))
        for key in (1, 2, 3):
            loop.post(Submitted(gateway, submission(key)))
        # Nobody has looked at these yet, and all the same they are known.
        await asyncio.wait_for(loop.reconcile(gateway, [1, 2, 3]), 10)
        for _ in range(4):
            assert isinstance(await messages.take(), PoolUpdate | Accepted)
        await asyncio.wait_for(loop.reconcile(gateway, [1, 2, 8, 9]), 10)
        assert await messages.take() == Unknown((8, 9))
        done = await asyncio.wait_for(messages.take(), 10)
        assert isinstance(done, CancelDone)
        assert done.request_key == 3
        assert done.trail is not None
        assert done.trail.reason is CancelReason.ORPHAN
        # It is on a worker that does not say that its blocks are free: it is told once, and asked for once.
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                await asyncio.wait_for(loop.reconcile(gateway, [2]), 10)
        assert [each["request_key"] for each in logs if each["event"] == "orphan_found"] == [1]
        loop.close_gateway(gateway)
        await asyncio.wait_for(loop.reconcile(gateway, [1]), 10)
