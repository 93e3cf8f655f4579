"""What gateways call: one stream each for all their requests, and the view of the fleet. Has no policy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import structlog

from tercet import errors, rpc
from tercet.mesh.v1 import scheduler_pb2, scheduler_pb2_grpc
from tercet.tenants.kept import says_kept
from tercet.tracing.messages import context_from_proto
from tercet.v1 import operations_pb2

from .actions import GatewayMessage
from .events import (
    CancelReason,
    GatewayAttached,
    PauseReceived,
    SequenceStopped,
    Submitted,
    UnpauseReceived,
)
from .fleet_messages import fleet_to_proto
from .gateway_messages import (
    cancel_from_proto,
    messages_to_proto,
    parted_to_proto,
    standing_to_proto,
    submission_from_proto,
    tenants_from_proto,
)
from .loop import Loop
from .outbox import Outbox, OutboxClosedError
from .standing import Standing
from .traffic_messages import traffic_to_proto
from .wire import enum_value

# A stream that says nothing is not kept.
HELLO_SECONDS = 10.0
# Tenants in an answer, unless it is said how many.
MAX_TENANTS = 100


class SchedulerService(scheduler_pb2_grpc.SchedulerServicer):
    """`epoch` is larger after each start; `standings` says where the scheduler stands now and after each change."""

    def __init__(self, loop: Loop, epoch: int, standings: Callable[[], AsyncIterator[Standing]]) -> None:
        self._loop = loop
        self._epoch = epoch
        self._standings = standings
        self._log = structlog.get_logger()
        # Gateways that would lose their requests if it said goodbye now.
        self._staying: set[int] = set()
        # Says goodbye to all, and takes none.
        self._parting = False

    @property
    def may_part(self) -> bool:
        """Whether all gateways can hand their requests over."""
        return not self._staying

    async def part(self) -> None:
        """Says goodbye to all gateways, and lets none in."""
        self._parting = self._loop.traces.parting = True
        await self._loop.part()

    def open(self) -> None:
        """Lets gateways in again."""
        self._parting = self._loop.traces.parting = False

    async def WatchStanding(
        self, _request: scheduler_pb2.WatchStandingRequest, _context: grpc.aio.ServicerContext
    ) -> AsyncIterator[scheduler_pb2.Standing]:
        """Where this scheduler stands among the others."""
        async for each in self._standings():
            yield standing_to_proto(each)

    async def Attach(self, _requests: Any, context: grpc.aio.ServicerContext) -> None:
        """One gateway, until either side ends the stream."""
        if self._parting:
            await rpc.abort(context, errors.DrainingError("the scheduler leaves its gateways to the next one"))
        try:
            first = await asyncio.wait_for(context.read(), HELLO_SECONDS)
        except asyncio.TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no hello within {HELLO_SECONDS:g} s")
        if first is grpc.aio.EOF or first.WhichOneof("message") != "hello":
            await rpc.abort(context, errors.InvalidFieldError("the first message must be a hello", field="hello"))
        hello = scheduler_pb2.SchedulerHello(epoch=self._epoch, takes_cancels=True)
        await context.write(scheduler_pb2.SchedulerMessage(hello=hello))
        if self._parting:
            # It was told to while it waited for the hello.
            await rpc.abort(context, errors.DrainingError("the scheduler leaves its gateways to the next one"))
        gateway, outbox = self._loop.open_gateway()
        self._loop.post(GatewayAttached(gateway, first.hello.gateway_id))
        tasks = []
        if first.hello.hands_over:
            tasks.append(asyncio.create_task(self._tell_standings(outbox)))
        else:
            self._staying.add(gateway)
        reader = asyncio.create_task(self._read(context, gateway))
        writer = asyncio.create_task(self._write(context, gateway, outbox, first.hello))
        tasks += [reader, writer]
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Whatever ended it, cancelled or not: what this gateway asked for has lost its reader.
            self._staying.discard(gateway)
            self._loop.close_gateway(gateway)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for problem in results:
            await self._end_for(problem, context, gateway)

    async def GetFleet(
        self, _request: operations_pb2.GetFleetRequest, context: grpc.aio.ServicerContext
    ) -> operations_pb2.Fleet:
        """The mesh now."""
        await self._refuse_unguarded(context)
        return fleet_to_proto(self._loop.view())

    async def GetTraffic(
        self, request: operations_pb2.GetTrafficRequest, context: grpc.aio.ServicerContext
    ) -> operations_pb2.Traffic:
        """What classes and tenants ask for and get."""
        await self._refuse_unguarded(context)
        view = self._loop.traffic(request.max_tenants or MAX_TENANTS)
        return traffic_to_proto(view, self._epoch, self._loop.uptime_s)

    async def DumpPlanLog(
        self, _request: operations_pb2.DumpPlanLogRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[operations_pb2.PlanLogPart]:
        """What was planned lately, and why."""
        await self._refuse_unguarded(context)
        try:
            parts = self._loop.dump_plan_log(time.time())
        except errors.RequestError as error:
            await rpc.abort(context, error)
        for part in parts:
            yield operations_pb2.PlanLogPart(data=part)
            # Whatever the stream can take, those who wait for a plan come first.
            await asyncio.sleep(0)

    async def _refuse_unguarded(self, context: grpc.aio.ServicerContext) -> None:
        """Refuses what a gateway asks that was started without the store of the others: it lets in anybody."""
        if self._loop.keeps_tenants and not says_kept(context.invocation_metadata()):
            text = "the gateway asks nobody for a key; gateways of one mesh must share their tenants.store"
            await rpc.abort(context, errors.PermissionDeniedError(text))

    async def _end_for(self, problem: BaseException | None, context: grpc.aio.ServicerContext, gateway: int) -> None:
        """Ends the stream with the status that `problem`, which ended one of its tasks, calls for; none, with OK."""
        if problem is None or isinstance(problem, asyncio.CancelledError):
            # The gateway said that it has no more, or it is the other task that ended first.
            return
        if isinstance(problem, OutboxClosedError):
            await rpc.abort(context, errors.SlowConsumerError("the gateway does not read its stream"))
        elif isinstance(problem, errors.InvalidFieldError):
            self._log.warning("gateway_refused", gateway=gateway, why=problem.message)
            await rpc.abort(context, problem)
        else:
            self._log.error("gateway_stream_failed", gateway=gateway, exc_info=problem)
            await rpc.abort(context, errors.EngineFaultError(f"the scheduler failed: {type(problem).__name__}"))

    async def _read(self, context: grpc.aio.ServicerContext, gateway: int) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            kind = message.WhichOneof("message")
            if kind == "tenants":
                self._loop.post(tenants_from_proto(gateway, message.tenants))
            elif kind == "submit":
                submission = submission_from_proto(message.submit)
                if message.submit.HasField("trace_context"):
                    trace = context_from_proto(message.submit.trace_context)
                    self._loop.traces.submitted(gateway, submission, trace)
                self._loop.post(Submitted(gateway, submission))
            elif kind == "cancel":
                self._loop.post(cancel_from_proto(gateway, message.cancel))
            elif kind == "cancels":
                for cancel in message.cancels.cancels:
                    self._loop.post(cancel_from_proto(gateway, cancel))
            elif kind == "stop_sequence":
                reason = enum_value(CancelReason, message.stop_sequence.reason)
                self._loop.post(SequenceStopped(gateway, message.stop_sequence.sequence_id, reason))
            elif kind == "running":
                await self._loop.reconcile(gateway, message.running.request_keys)
            elif kind == "refusals":
                for each in message.refusals.counts:
                    # A reason that this version does not know is counted as its clients see it.
                    known = errors.from_reason(each.reason, "").reason
                    tenant = each.tenant_id if each.HasField("tenant_id") else None
                    self._loop.count_refused(tenant, each.traffic_class, known, each.count)
            elif kind == "pause":
                self._loop.post(PauseReceived(gateway, message.pause.request_key))
            elif kind == "unpause":
                self._loop.post(UnpauseReceived(gateway, message.unpause.request_key))
            else:
                self._log.warning("gateway_message_ignored", gateway=gateway, kind=kind)

    async def _tell_standings(self, outbox: Outbox[GatewayMessage]) -> None:
        async for each in self._standings():
            outbox.put(each)

    async def _write(
        self,
        context: grpc.aio.ServicerContext,
        gateway: int,
        outbox: Outbox[GatewayMessage],
        hello: scheduler_pb2.GatewayHello,
    ) -> None:
        try:
            while True:
                for message in messages_to_proto(await outbox.take_all(), many=hello.takes_cancels_done):
                    await context.write(message)
        except OutboxClosedError as closed:
            if closed.overflowed:
                raise
        parted = parted_to_proto(self._loop.costs_so_far(gateway).accounts)
        await context.write(scheduler_pb2.SchedulerMessage(goodbye=scheduler_pb2.Goodbye(parted=parted)))
        # The gateway ends the stream when it has read that, or the server ends it.
        await asyncio.Event().wait()
