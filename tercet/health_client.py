"""Asks a service for its health by name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tercet.health import Reasons
from tercet.health_service import REASON_KEY

_UNSAID = "it does not say why"
# Of a name, and of health altogether.
_UNKNOWN = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED)


async def ask(channel: grpc.aio.Channel, names: Iterable[str], timeout_s: float) -> dict[str, Reasons]:
    """Why each name does not hold, if it does not. A name that is not known there is left out.

    Raises grpc.aio.AioRpcError if the service does not answer.
    """
    stub = health_pb2_grpc.HealthStub(channel)
    asked = list(names)
    found = await asyncio.gather(*(_ask(stub, name, timeout_s) for name in asked))
    return {name: reasons for name, reasons in zip(asked, found, strict=True) if reasons is not None}


async def _ask(stub: health_pb2_grpc.HealthStub, name: str, timeout_s: float) -> Reasons | None:
    call = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=timeout_s)
    try:
        reply = await call
    except grpc.aio.AioRpcError as error:
        if error.code() in _UNKNOWN:
            return None
        raise
    if reply.status == health_pb2.HealthCheckResponse.SERVING:
        return ()
    reason = dict(await call.trailing_metadata() or ()).get(REASON_KEY, _UNSAID)
    return (str(reason),)
