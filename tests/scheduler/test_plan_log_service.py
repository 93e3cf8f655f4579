"""Scheduler.DumpPlanLog over real gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from recorded import reread
from served import populated, served

from scheduler.admission import QueueBounds
from scheduler.core_settings import CoreSettings
from scheduler.events import Submitted
from scheduler.loop import Loop
from scheduler.plan_log.recorder import recorded_core
from scheduler.plan_log.replay import replay
from scheduler.policy import Policy
from scheduler.simulator.small import submission
from tercet import errors, rpc
from tercet.v1 import operations_pb2

pytestmark = pytest.mark.timeout(60)
REQUESTS = 2000


@contextlib.asynccontextmanager
async def serving(max_rounds: int) -> AsyncIterator[Any]:
    """A stub of a scheduler that has REQUESTS rounds behind it."""
    settings = CoreSettings(("host:1",), Policy(4, 0), QueueBounds(REQUESTS, 1_000_000))
    core, recorder = recorded_core(settings, max_rounds)
    loop = Loop(core, lambda: 1.0, recorder)
    async with served(loop) as stub:
        gateway = populated(loop)
        for key in range(REQUESTS):
            loop.post(Submitted(gateway, submission(key)))
            await asyncio.sleep(0)
        yield stub


async def test_it_comes_in_parts_between_which_others_run() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with serving(100_000) as stub:
        task = asyncio.create_task(others())
        parts = [part.data async for part in stub.DumpPlanLog(operations_pb2.DumpPlanLogRequest())]
        task.cancel()
    assert len(parts) > 10
    assert max(map(len, parts)) <= 256 << 10
    assert turns >= len(parts)
    file = reread(b"".join(parts))
    assert sum(isinstance(event, Submitted) for each in file.rounds for event in each.events) == REQUESTS
    assert replay(file).equal


async def test_who_goes_away_early_leaves_nothing_behind() -> None:
    async with serving(100_000) as stub:
        call = stub.DumpPlanLog(operations_pb2.DumpPlanLogRequest())
        await call.read()
        call.cancel()
        again = [part.data async for part in stub.DumpPlanLog(operations_pb2.DumpPlanLogRequest())]
    assert replay(reread(b"".join(again))).equal


async def test_switched_off_is_a_typed_error_that_names_the_setting() -> None:
    async with serving(0) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.DumpPlanLog(operations_pb2.DumpPlanLogRequest()).read()
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    error = rpc.typed_error(caught.value.trailing_metadata())
    assert isinstance(error, errors.SwitchedOffError)
    assert error.metadata == {"setting": "scheduler.plan_log_rounds"}
