"""The plan log on its way from the scheduler through the gateway: passed on as it is, or one typed error."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from tercet import errors
from tercet.client import AsyncClient
from tercet.v1 import operations_pb2 as pb


async def read_all(gateway: Any, parts: list[bytes]) -> None:
    async with AsyncClient(f"127.0.0.1:{gateway.port}") as client:
        async for part in client.dump_plan_log():
            parts.append(part)  # noqa: PERF401 - what came before an error is looked at


async def test_parts_pass_as_they_are(gateway: Any, scheduler: Any) -> None:
    scheduler.plan_log = [bytes([index]) * 70_000 for index in range(60)]
    parts: list[bytes] = []
    await read_all(gateway, parts)
    assert parts == scheduler.plan_log
    scheduler.plan_log = []
    await read_all(gateway, parts := [])
    assert parts == []


async def test_an_error_of_the_scheduler_keeps_its_type(gateway: Any, scheduler: Any) -> None:
    scheduler.plan_log = [b"begun"]
    scheduler.plan_log_failure = errors.DrainingError("the scheduler stops", retry_after_s=2.0)
    parts: list[bytes] = []
    with pytest.raises(errors.DrainingError, match="the scheduler stops") as caught:
        await read_all(gateway, parts)
    assert parts == [b"begun"]
    assert caught.value.retry_after_s == 2.0


async def test_no_scheduler(gateway: Any, scheduler: Any) -> None:
    await scheduler.stop()
    with pytest.raises(errors.SchedulerLostError):
        await read_all(gateway, [])


async def test_a_scheduler_that_says_nothing(gateway: Any, scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.scheduler_calls.PART_TIMEOUT_S", 0.1)

    async def silent(request: Any, context: Any) -> Any:
        await asyncio.sleep(3600)
        yield pb.PlanLogPart()

    scheduler.dump = silent
    with pytest.raises(errors.SchedulerLostError, match=r"nothing for 0\.1 s"):
        await read_all(gateway, [])


async def test_a_reader_that_leaves_ends_the_schedulers_call_too(gateway: Any, scheduler: Any) -> None:
    scheduler.plan_log = [bytes(100_000)] * 2_000
    call = gateway.operations.DumpPlanLog(pb.DumpPlanLogRequest())
    await call.read()
    assert not scheduler.plan_log_left.is_set()
    call.cancel()
    await scheduler.plan_log_left.wait()
    assert scheduler.parts_sent < 2_000


async def test_a_reader_that_does_not_read_is_cut_off(scheduler: Any, make_gateway: Any, stop_gateway: Any) -> None:
    gateway = await make_gateway(scheduler.port, stream_stall_seconds=0.2)
    scheduler.plan_log = [bytes(100_000)] * 2_000
    call = gateway.operations.DumpPlanLog(pb.DumpPlanLogRequest())
    await call.read()
    await scheduler.plan_log_left.wait()
    # Nobody holds what nobody reads.
    assert scheduler.parts_sent < 2_000
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        while await call.read() is not grpc.aio.EOF:
            pass
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await stop_gateway(gateway)


async def test_unknown_fields_are_refused(gateway: Any) -> None:
    call = gateway.channel.unary_stream("/tercet.v1.Operations/DumpPlanLog")(b"\x08\x01")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
