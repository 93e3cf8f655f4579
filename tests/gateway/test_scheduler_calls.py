"""What is passed on to the scheduler when the channel is closed for another one meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.scheduler_calls import SchedulerCalls
from tercet.dialer import Dialer
from tercet.errors import DrainingError, SchedulerLostError
from tercet.rpc import abort
from tercet.v1 import operations_pb2 as pb


class SilentScheduler:
    """Answers nothing, and counts who has come; once `failure` is set, that."""

    def __init__(self) -> None:
        self.arrived = 0
        self.failure: DrainingError | None = None

    async def answer(self, _request: Any, context: Any) -> Any:
        self.arrived += 1
        if self.failure is not None:
            await abort(context, self.failure)
        await asyncio.Event().wait()


@pytest.fixture
async def scheduler() -> AsyncIterator[tuple[SilentScheduler, Dialer]]:
    silent, server = SilentScheduler(), grpc.aio.server()
    once = grpc.unary_unary_rpc_method_handler(silent.answer)
    handlers = {
        "GetFleet": once,
        "GetTraffic": once,
        "DumpPlanLog": grpc.unary_stream_rpc_method_handler(silent.answer),
    }
    services = {"tercet.mesh.v1.Scheduler": handlers, "grpc.health.v1.Health": {"Check": once}}
    for service, methods in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        server.add_registered_method_handlers(service, methods)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    dialer = Dialer(f"127.0.0.1:{port}", "scheduler", None)
    yield silent, dialer
    await dialer.close()
    await server.stop(0)


async def plan_log(calls: SchedulerCalls) -> list[bytes]:
    return [part async for part in calls.plan_log()]


CALLS: list[Callable[[SchedulerCalls], Any]] = [
    lambda calls: calls.fleet(),
    lambda calls: calls.traffic(pb.GetTrafficRequest()),
    plan_log,
    lambda calls: calls.health(("ready",)),
]


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_whose_channel_is_closed_ends_with_a_typed_error(
    call: Callable[[SchedulerCalls], Any], scheduler: tuple[SilentScheduler, Dialer], until: Any
) -> None:
    silent, dialer = scheduler
    asking = asyncio.ensure_future(call(SchedulerCalls(dialer, lambda: ())))

    async def arrived() -> bool:
        return silent.arrived == 1

    await until(arrived)
    # As for new certificates.
    await dialer.close()
    with pytest.raises(SchedulerLostError, match="was closed at") as lost:
        await asyncio.wait_for(asking, 20)
    assert lost.value.metadata == {"scheduler": dialer.address}


@pytest.mark.parametrize("call", CALLS)
async def test_whoever_asked_may_still_be_cancelled(
    call: Callable[[SchedulerCalls], Any], scheduler: tuple[SilentScheduler, Dialer], until: Any
) -> None:
    silent, dialer = scheduler
    asking = asyncio.ensure_future(call(SchedulerCalls(dialer, lambda: ())))

    async def arrived() -> bool:
        return silent.arrived == 1

    await until(arrived)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_health_has_one_error_whatever_the_scheduler_says(scheduler: tuple[SilentScheduler, Dialer]) -> None:
    silent, dialer = scheduler
    silent.failure = DrainingError("it stops")
    with pytest.raises(SchedulerLostError, match="DRAINING"):
        await SchedulerCalls(dialer, lambda: ()).health(("ready",))
    with pytest.raises(DrainingError, match="it stops"):
        await SchedulerCalls(dialer, lambda: ()).fleet()
