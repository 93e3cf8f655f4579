"""The traffic on its way from the scheduler through the gateway: passed on as it is, or one typed error."""

from __future__ import annotations

from typing import Any

import pytest

from tercet import errors
from tercet.client import AsyncClient
from tercet.traffic import TrafficInfo
from tercet.v1 import operations_pb2


async def look(gateway: Any) -> TrafficInfo:
    async with AsyncClient(f"127.0.0.1:{gateway.port}") as client:
        return await client.traffic(timeout_s=10)


async def test_it_passes_as_it_is_and_so_does_what_was_asked(gateway: Any) -> None:
    told = await gateway.operations.GetTraffic(operations_pb2.GetTrafficRequest(max_tenants=7))
    assert (told.epoch, told.uptime_seconds, told.tenants_omitted) == (1, 2.5, 7)
    assert await look(gateway) == TrafficInfo(1, 2.5, (), (), 100)  # as many as the client asks for by itself


async def test_an_error_of_the_scheduler_keeps_its_type(gateway: Any, scheduler: Any) -> None:
    scheduler.traffic_failure = errors.DrainingError("the scheduler stops", retry_after_s=2.0)
    with pytest.raises(errors.DrainingError, match="the scheduler stops"):
        await look(gateway)


async def test_no_scheduler(gateway: Any, scheduler: Any) -> None:
    await scheduler.stop()
    with pytest.raises(errors.SchedulerLostError):
        await look(gateway)
