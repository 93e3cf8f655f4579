"""tercet.v1.Operations over gRPC, and what the console's page shows of the same."""

from __future__ import annotations

import contextlib

import grpc

from tercet import errors
from tercet.slow_reader import write
from tercet.v1 import operations_pb2

from .books import Books
from .call_end import end_call
from .caller import Caller
from .cancellation_messages import to_cancellations
from .generations import Generations
from .guard import Guard
from .schedulers import Schedulers
from .wire import Malformed, checked


class OperationsService:
    """tercet.v1.Operations."""

    def __init__(self, generations: Generations, books: Books, link: Schedulers, guard: Guard) -> None:
        self._generations = generations
        self._books = books
        self._link = link
        self._guard = guard

    async def get_fleet(self, _: operations_pb2.GetFleetRequest, _caller: Caller) -> operations_pb2.Fleet:
        """What the scheduler says."""
        return await self._link.fleet()

    async def get_traffic(self, message: operations_pb2.GetTrafficRequest, _caller: Caller) -> operations_pb2.Traffic:
        """What the scheduler says."""
        return await self._link.traffic(message)

    async def list_cancellations(
        self, message: operations_pb2.ListCancellationsRequest, _caller: Caller
    ) -> operations_pb2.ListCancellationsResponse:
        """The latest of this gateway."""
        return to_cancellations(self._books.cancellations(), message)

    async def cancel_generation(
        self, received: operations_pb2.CancelGenerationRequest | Malformed, context: grpc.aio.ServicerContext
    ) -> operations_pb2.CancelGenerationResponse:
        """Cancels by request id: an operator whoever's, others their own."""
        try:
            caller = self._guard.caller(context)
            message = checked(received)
            if not message.request_id:
                raise errors.InvalidFieldError("request_id is required", field="request_id")
            if message.tenant not in ("", caller.tenant) and not caller.operator:
                raise errors.PermissionDeniedError("the requests of other tenants need the key of an operator")
            tenant = message.tenant or (None if caller.operator else caller.tenant)
            found = self._generations.cancel(message.request_id, tenant)
            return operations_pb2.CancelGenerationResponse(found=found)
        except BaseException as error:
            await end_call(error, context, None)

    async def dump_plan_log(
        self, received: operations_pb2.DumpPlanLogRequest | Malformed, context: grpc.aio.ServicerContext
    ) -> None:
        """The scheduler's plan log, passed on piece by piece."""
        try:
            self._guard.operator(context)
            checked(received)
            limit_s, first = self._generations.settings.stream_stall_seconds, True
            async with contextlib.aclosing(self._link.plan_log()) as parts:
                async for data in parts:
                    await write(context, operations_pb2.PlanLogPart(data=data), limit_s, first=first)
                    first = False
        except BaseException as error:
            await end_call(error, context, None)
