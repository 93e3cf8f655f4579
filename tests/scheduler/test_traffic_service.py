"""Scheduler.GetTraffic over real gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from scheduler.admission import QueueBounds
from scheduler.core import Core, CoreSettings
from scheduler.events import GatewayAttached, Submitted, TenantsChanged, WorkerAttached
from scheduler.loop import Loop
from scheduler.planner import Policy
from scheduler.service import SchedulerService
from scheduler.simulator.small import submission, worker_info
from scheduler.tenant import TenantPlan
from tercet import rpc
from tercet.mesh.v1 import scheduler_pb2, scheduler_pb2_grpc
from tercet.traffic import from_traffic
from tercet.v1 import operations_pb2

pytestmark = pytest.mark.timeout(60)
EPOCH = 7


class Clock:
    """Seconds, by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def serving(clock: Clock) -> AsyncIterator[Any]:
    """A stub of a scheduler to which a worker, that says nothing, and a gateway with three tenants have come."""
    loop = Loop(Core(CoreSettings(("host:1",), Policy(4, 0), QueueBounds(100, 1_000_000))), clock)
    runner = asyncio.create_task(loop.run())
    link, _ = loop.open_worker()
    loop.post(WorkerAttached(link, "host:1", worker_info(max_num_seqs=2)))
    gateway, _ = loop.open_gateway()
    loop.post(GatewayAttached(gateway, "gateway-1"))
    plans = (TenantPlan("acme"), TenantPlan("globex", max_concurrent=1), TenantPlan("idle"))
    loop.post(TenantsChanged(gateway, 1, plans))
    asked = [("acme", "rag")] * 5 + [("globex", "")] * 3 + [("nobody", ""), ("acme", "none")]
    for key, (tenant, traffic_class) in enumerate(asked):
        loop.post(Submitted(gateway, submission(key, (1, 2, 3), tenant=tenant, traffic_class=traffic_class)))
    await asyncio.sleep(0.01)
    server = rpc.Server()
    scheduler_pb2_grpc.add_SchedulerServicer_to_server(SchedulerService(loop, EPOCH), server.grpc_server)
    port = await server.start("127.0.0.1", 0, [scheduler_pb2.DESCRIPTOR], key="scheduler.port")
    channel = rpc.open_channel(f"127.0.0.1:{port}")
    try:
        yield scheduler_pb2_grpc.SchedulerStub(channel)
    finally:
        await channel.close()
        await server.stop(0)
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)


async def test_it_tells_of_classes_and_tenants() -> None:
    clock = Clock()
    async with serving(clock) as stub:
        clock.now += 2.5
        traffic = from_traffic(await stub.GetTraffic(operations_pb2.GetTrafficRequest()))
    assert (traffic.epoch, traffic.uptime_s, traffic.tenants_omitted) == (EPOCH, 2.5, 0)
    classes = {each.name: each for each in traffic.classes}
    assert list(classes) == ["interactive", "rag", "batch", ""]
    assert (classes["interactive"].targets.ttft_s, classes["batch"].targets.ttft_s) == (1.0, 0.0)
    load = classes["rag"].load
    assert load.requests_waiting + load.requests_running == 5
    assert load.tokens_waiting == 3 * load.requests_waiting > 0
    assert load.oldest_s == 2.5
    assert classes["batch"].load.oldest_s is None
    assert classes["interactive"].counts.refused == {"TENANT_QUOTA": 2}
    assert classes[""].counts.refused == {"PERMISSION_DENIED": 1, "INVALID_FIELD": 1}
    tenants = {(each.tenant, each.traffic_class): each for each in traffic.tenants}
    assert set(tenants) == {("acme", "rag"), ("acme", ""), ("globex", "interactive"), (None, "")}
    assert tenants["acme", "rag"].load == load
    assert tenants["globex", "interactive"].counts.refused == {"TENANT_QUOTA": 2}
    # A name that anybody may have made up is not passed on.
    assert tenants[None, ""].counts.refused == {"PERMISSION_DENIED": 1}


async def test_it_tells_of_no_more_tenants_than_asked_for() -> None:
    async with serving(Clock()) as stub:
        traffic = from_traffic(await stub.GetTraffic(operations_pb2.GetTrafficRequest(max_tenants=1)))
    assert {each.tenant for each in traffic.tenants} == {"acme"}
    assert traffic.tenants_omitted == 2
