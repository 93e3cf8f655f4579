"""Scheduler.GetTraffic over real gRPC."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from served import EPOCH, populated, served

from scheduler.admission import QueueBounds
from scheduler.core import Core
from scheduler.core_settings import CoreSettings
from scheduler.events import Submitted, TenantsChanged
from scheduler.loop import Loop
from scheduler.policy import Policy
from scheduler.simulator.small import submission
from scheduler.tenant import NamedPlan
from tercet import rpc
from tercet.errors import PermissionDeniedError
from tercet.mesh.v1 import scheduler_pb2
from tercet.tenants.kept import KEPT
from tercet.traffic import from_traffic
from tercet.v1 import operations_pb2

pytestmark = pytest.mark.timeout(60)
GUARDED = (KEPT,)


class Clock:
    """Seconds, by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def serving(clock: Clock) -> AsyncIterator[Any]:
    """A stub of a scheduler that has been asked by three tenants."""
    loop = Loop(Core(CoreSettings(("host:1",), Policy(4, 0), QueueBounds(100, 1_000_000))), clock)
    gateway = populated(loop, max_num_seqs=2)
    plans = (NamedPlan("acme"), NamedPlan("globex", max_concurrent=1), NamedPlan("idle"))
    loop.post(TenantsChanged(gateway, 1, plans))
    asked = [("acme", "rag")] * 5 + [("globex", "")] * 3 + [("nobody", ""), ("acme", "none")]
    for key, (tenant, traffic_class) in enumerate(asked):
        loop.post(Submitted(gateway, submission(key, (1, 2, 3), tenant=tenant, traffic_class=traffic_class)))
    async with served(loop) as stub:
        yield stub


async def test_it_tells_of_classes_and_tenants() -> None:
    clock = Clock()
    async with serving(clock) as stub:
        clock.now += 2.5
        traffic = from_traffic(await stub.GetTraffic(operations_pb2.GetTrafficRequest(), metadata=GUARDED))
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
        traffic = from_traffic(await stub.GetTraffic(operations_pb2.GetTrafficRequest(max_tenants=1), metadata=GUARDED))
    assert {each.tenant for each in traffic.tenants} == {"acme"}
    assert traffic.tenants_omitted == 2


async def test_it_counts_what_gateways_have_refused() -> None:
    def refused(tenant: str | None, traffic_class: str, reason: str, count: int) -> scheduler_pb2.RefusalCount:
        return scheduler_pb2.RefusalCount(tenant_id=tenant, traffic_class=traffic_class, reason=reason, count=count)

    async with serving(Clock()) as stub:
        before = from_traffic(await stub.GetTraffic(operations_pb2.GetTrafficRequest(), metadata=GUARDED))
        call = stub.Attach()
        await call.write(scheduler_pb2.GatewayMessage(hello=scheduler_pb2.GatewayHello(gateway_id="gateway-2")))
        counts = [
            refused(None, "", "UNAUTHENTICATED", 9),
            refused("acme", "rag", "TENANT_QUOTA", 4),
            refused("globex", "", "QUEUE_FULL", 3),
            # Names that clients, or newer gateways, made up.
            refused("nobody", "rag", "TENANT_QUOTA", 2),
            refused("acme", "made-up", "MODEL_NOT_FOUND", 2),
            refused("acme", "rag", "OF_TOMORROW", 1),
        ]
        await call.write(scheduler_pb2.GatewayMessage(refusals=scheduler_pb2.RefusalCounts(counts=counts)))
        traffic = before
        while traffic.tenants == before.tenants:
            traffic = from_traffic(await stub.GetTraffic(operations_pb2.GetTrafficRequest(), metadata=GUARDED))
        call.cancel()
    tenants = {(each.tenant, each.traffic_class): each.counts.refused for each in traffic.tenants}
    assert tenants == {
        (None, ""): {"PERMISSION_DENIED": 1, "UNAUTHENTICATED": 9, "TENANT_QUOTA": 2},
        ("acme", "rag"): {"TENANT_QUOTA": 4, "ENGINE_FAULT": 1},
        ("acme", ""): {"INVALID_FIELD": 1, "MODEL_NOT_FOUND": 2},
        ("globex", "interactive"): {"TENANT_QUOTA": 2, "QUEUE_FULL": 3},
    }
    classes = {each.name: each.counts.refused for each in traffic.classes}
    assert classes["rag"] == {"TENANT_QUOTA": 4, "ENGINE_FAULT": 1}
    assert classes["interactive"] == {"TENANT_QUOTA": 2, "QUEUE_FULL": 3}


async def test_a_gateway_without_tenants_learns_nothing_of_those_there_are() -> None:
    async with serving(Clock()) as stub:
        for ask in (
            lambda **metadata: stub.GetFleet(operations_pb2.GetFleetRequest(), **metadata),
            lambda **metadata: stub.GetTraffic(operations_pb2.GetTrafficRequest(), **metadata),
            lambda **metadata: stub.DumpPlanLog(operations_pb2.DumpPlanLogRequest(), **metadata).read(),
        ):
            for wrong in ((), (("tercet-tenants", "none"),)):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await ask(metadata=wrong)
                assert isinstance(rpc.typed_error(caught.value.trailing_metadata()), PermissionDeniedError)
        assert await stub.GetFleet(operations_pb2.GetFleetRequest(), metadata=GUARDED)


async def test_where_nobody_keeps_tenants_nothing_is_asked_for() -> None:
    loop = Loop(Core(CoreSettings(("host:1",), Policy(4, 0), QueueBounds(100, 1_000_000))), Clock())
    populated(loop)
    async with served(loop) as stub:
        traffic = from_traffic(await stub.GetTraffic(operations_pb2.GetTrafficRequest()))
    assert traffic.tenants == ()
