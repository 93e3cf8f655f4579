"""What a gateway asks its scheduler for, beside the stream: passed on as it is, or one typed error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any, TypeVar

import grpc
import grpc.aio

from tercet import errors, rpc
from tercet.dialer import Dialer
from tercet.health import Conditions
from tercet.health_client import ask
from tercet.mesh.v1 import scheduler_pb2_grpc
from tercet.patience import GivenUpError, apart
from tercet.retry import UNKNOWN_RETRY_SECONDS
from tercet.v1 import operations_pb2 as pb

_FLEET_TIMEOUT_S = 5.0
_HEALTH_TIMEOUT_S = 2.0
# Between two pieces of the plan log.
PART_TIMEOUT_S = 10.0

T = TypeVar("T")


def scheduler_lost(message: str, address: str) -> errors.SchedulerLostError:
    """What ends requests that the scheduler of that address has lost, or cannot have."""
    return errors.SchedulerLostError(
        f"{message} at {address}", metadata={"scheduler": address}, retry_after_s=UNKNOWN_RETRY_SECONDS
    )


class SchedulerCalls:
    """Calls to one scheduler, on the channel that `dialer` has, which may be closed for another one meanwhile. Each
    raises SchedulerLostError, or the scheduler's own RequestError. `guarded` gives the metadata that says whether
    callers are asked for keys."""

    def __init__(self, dialer: Dialer, guarded: Callable[[], tuple[tuple[str, str], ...]]) -> None:
        self._dialer = dialer
        self._guarded = guarded

    async def fleet(self) -> pb.Fleet:
        """The scheduler's view of the mesh."""

        async def get() -> pb.Fleet:
            fleet: pb.Fleet = await self._stub().GetFleet(
                pb.GetFleetRequest(), timeout=_FLEET_TIMEOUT_S, metadata=self._guarded()
            )
            return fleet

        return await self._answer(get)

    async def traffic(self, request: pb.GetTrafficRequest) -> pb.Traffic:
        """The scheduler's view of the traffic."""

        async def get() -> pb.Traffic:
            traffic: pb.Traffic = await self._stub().GetTraffic(
                request, timeout=_FLEET_TIMEOUT_S, metadata=self._guarded()
            )
            return traffic

        return await self._answer(get)

    async def health(self, names: Iterable[str]) -> Conditions:
        """What the scheduler says of these health names. Raises SchedulerLostError alone."""
        try:
            return await self._answer(lambda: ask(self._dialer.channel, names, _HEALTH_TIMEOUT_S))
        except errors.SchedulerLostError:
            raise
        except errors.RequestError as error:
            raise self._lost(f"the scheduler does not answer: {error.reason}") from error

    async def plan_log(self) -> AsyncGenerator[bytes, None]:
        """The scheduler's plan log, piece by piece as it is read."""
        call: Any = None

        async def read() -> Any:
            nonlocal call
            call = call or self._stub().DumpPlanLog(pb.DumpPlanLogRequest(), metadata=self._guarded())
            part = await call.read()
            if part is grpc.aio.EOF and await call.code() is not grpc.StatusCode.OK:
                raise self._refused(await call.code(), await call.trailing_metadata())
            return part

        try:
            while (part := await self._answer(read, PART_TIMEOUT_S)) is not grpc.aio.EOF:
                yield part.data
        except asyncio.TimeoutError:
            raise self._lost(f"the scheduler said nothing for {PART_TIMEOUT_S:g} s") from None
        finally:
            # Without this a reader that leaves lets the scheduler go on.
            if call is not None:
                call.cancel()

    async def _answer(self, asking: Callable[[], Awaitable[T]], limit_s: float | None = None) -> T:
        """What is answered. Raises asyncio.TimeoutError after `limit_s` seconds."""

        async def answer() -> T:
            return await asking()

        try:
            return await apart(answer(), limit_s)
        except grpc.aio.AioRpcError as error:
            raise self._refused(error.code(), error.trailing_metadata()) from error
        # That is what becomes of calls whose channel is closed, and of those that come right behind.
        except (GivenUpError, grpc.aio.UsageError) as error:
            raise self._lost("the connection to the scheduler was closed") from error

    def _refused(
        self, code: grpc.StatusCode, trailers: Iterable[tuple[str, str | bytes]] | None
    ) -> errors.RequestError:
        """The error that the scheduler ended a call with."""
        return rpc.typed_error(trailers) or self._lost(f"the scheduler did not answer: {code.name}")

    def _lost(self, message: str) -> errors.SchedulerLostError:
        return scheduler_lost(message, self._dialer.address)

    def _stub(self) -> scheduler_pb2_grpc.SchedulerStub:
        return scheduler_pb2_grpc.SchedulerStub(self._dialer.channel)
