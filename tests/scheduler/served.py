"""A scheduler's loop behind a real gRPC server, and a stub of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from scheduler.events import GatewayAttached, WorkerAttached
from scheduler.loop import Loop
from scheduler.service import SchedulerService
from scheduler.simulator.small import worker_info
from scheduler.standing import Standing
from tercet import rpc
from tercet.mesh.v1 import scheduler_pb2, scheduler_pb2_grpc

EPOCH = 7


def populated(loop: Loop, **worker: Any) -> int:
    """Brings a worker, that says nothing, and a gateway to a loop; the gateway's number."""
    link, _ = loop.open_worker()
    loop.post(WorkerAttached(link, "host:1", worker_info(**worker)))
    gateway, _ = loop.open_gateway()
    loop.post(GatewayAttached(gateway, "gateway-1"))
    return gateway


async def nowhere() -> AsyncIterator[Standing]:
    """Where a scheduler stands that has no others beside it."""
    yield Standing(EPOCH, EPOCH)


@contextlib.asynccontextmanager
async def served(loop: Loop) -> AsyncIterator[Any]:
    """A stub of the scheduler whose loop it is, which runs meanwhile."""
    runner = asyncio.create_task(loop.run())
    server = rpc.Server()
    scheduler_pb2_grpc.add_SchedulerServicer_to_server(SchedulerService(loop, EPOCH, nowhere), server.grpc_server)
    port = await server.start("127.0.0.1", 0, [scheduler_pb2.DESCRIPTOR], key="scheduler.port")
    channel = rpc.open_channel(f"127.0.0.1:{port}")
    try:
        yield scheduler_pb2_grpc.SchedulerStub(channel)
    finally:
        await channel.close()
        await server.stop(0)
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)
