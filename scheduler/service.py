"""What gateways call: one stream each for all their requests, and the view of the fleet.

Translates the scheduler's contract to and from plain values; has no policy.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import chain, groupby
from typing import Any

import grpc
import grpc.aio
import structlog

from tercet import errors, rpc
from tercet.failure import failure_to_proto
from tercet.mesh.v1 import scheduler_pb2, scheduler_pb2_grpc, sequence_pb2
from tercet.tenants.kept import says_kept
from tercet.tenants.plan import MIN_WEIGHT, PlanError
from tercet.v1 import operations_pb2

from .actions import (
    Accepted,
    Account,
    CancelDone,
    GatewayMessage,
    PoolUpdate,
    Refused,
    SequenceEnd,
    TokenBatch,
    Unknown,
)
from .cancel_trail import CancelTrail
from .events import (
    Begun,
    CancelReason,
    CancelReceived,
    GatewayAttached,
    PauseReceived,
    SequenceStopped,
    Submission,
    Submitted,
    TenantsChanged,
    UnpauseReceived,
)
from .fleet_view import FleetView
from .loop import Loop
from .outbox import Outbox, OutboxClosedError
from .sequence import Sequence as Running
from .standing import Standing
from .tenant import NamedPlan
from .traffic_messages import traffic_to_proto
from .wire import enum_value, sampling_from_proto

# A stream that says nothing is not kept.
HELLO_SECONDS = 10.0
# Tenants in an answer, unless it is said how many.
MAX_TENANTS = 100

_COLUMNS = ("sequence_ids", "token_ids", "ends", "logprobs", "prompt_logprobs")


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
        self._parting = True
        await self._loop.part()

    def open(self) -> None:
        """Lets gateways in again."""
        self._parting = False

    async def WatchStanding(
        self, _request: scheduler_pb2.WatchStandingRequest, _context: grpc.aio.ServicerContext
    ) -> AsyncIterator[scheduler_pb2.Standing]:
        """Where this scheduler stands among the others."""
        async for each in self._standings():
            yield _standing_to_proto(each)

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
        await context.write(scheduler_pb2.SchedulerMessage(hello=scheduler_pb2.SchedulerHello(epoch=self._epoch)))
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
        writer = asyncio.create_task(self._write(context, gateway, outbox))
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
                self._loop.post(Submitted(gateway, submission_from_proto(message.submit)))
            elif kind == "cancel":
                reason = enum_value(CancelReason, message.cancel.reason)
                self._loop.post(CancelReceived(gateway, message.cancel.request_key, reason))
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

    async def _write(self, context: grpc.aio.ServicerContext, gateway: int, outbox: Outbox[GatewayMessage]) -> None:
        try:
            while True:
                for message in merged(await outbox.take_all()):
                    await context.write(message_to_proto(message))
        except OutboxClosedError as closed:
            if closed.overflowed:
                raise
        parted = [
            scheduler_pb2.Parted(sequence_id=each.sequence_id, account=_cost_to_proto(each))
            for each in self._loop.running(gateway)
        ]
        await context.write(scheduler_pb2.SchedulerMessage(goodbye=scheduler_pb2.Goodbye(parted=parted)))
        # The gateway ends the stream when it has read that, or the server ends it.
        await asyncio.Event().wait()


def tenants_from_proto(gateway: int, update: scheduler_pb2.TenantUpdate) -> TenantsChanged:
    """Raises InvalidFieldError."""
    return TenantsChanged(gateway, update.revision, tuple(_plan_from_proto(plan) for plan in update.tenants))


def _plan_from_proto(plan: scheduler_pb2.TenantPlan) -> NamedPlan:
    try:
        return NamedPlan(
            plan.tenant_id,
            classes=tuple(plan.classes),
            default_class=plan.default_class,
            weight=max(plan.weight, MIN_WEIGHT) if 0.0 < plan.weight < math.inf else 1.0,
            requests_per_minute=plan.requests_per_minute,
            tokens_per_minute=plan.tokens_per_minute,
            max_concurrent=plan.max_concurrent,
            kv_share=plan.kv_share if 0.0 < plan.kv_share < 1.0 else 0.0,
            max_context=plan.max_context,
            min_priority=plan.min_priority,
            uid=plan.uid,
        )
    except PlanError as error:
        raise errors.InvalidFieldError(f"tenant {plan.tenant_id!r}: {error}", field="tenants") from error


def submission_from_proto(submit: scheduler_pb2.Submit) -> Submission:
    return Submission(
        request_key=submit.request_key,
        request_id=submit.request_id,
        model=submit.model,
        model_revision=submit.model_revision,
        prompt_token_ids=tuple(submit.prompt_token_ids),
        max_tokens=submit.max_tokens,
        max_tokens_open=submit.max_tokens_open,
        stop_token_ids=tuple(submit.stop_token_ids),
        sampling=sampling_from_proto(submit.sampling),
        deadline_s=submit.deadline_ms / 1000 if submit.HasField("deadline_ms") else None,
        prefix_salt=submit.prefix_salt,
        n=submit.n or 1,
        traffic_class=submit.traffic_class,
        priority=submit.priority,
        tenant=submit.tenant_id,
        begun=tuple(map(_begun_from_proto, submit.begun)),
    )


def _begun_from_proto(begun: scheduler_pb2.Begun) -> Begun:
    account = begun.account
    return Begun(
        token_ids=tuple(begun.token_ids),
        ended=begun.ended,
        cached_tokens=account.cached_tokens,
        queue_s=account.queue_us / 1e6,
        gpu_us=float(account.gpu_us),
    )


def _cost_to_proto(sequence: Running) -> scheduler_pb2.Account:
    """Of one that goes on elsewhere, where its tokens are counted and its blocks."""
    return scheduler_pb2.Account(
        cached_tokens=sequence.cached_tokens,
        queue_us=round(sequence.queue_seconds * 1e6),
        gpu_us=max(0, round(sequence.gpu_us)),
    )


def merged(messages: Sequence[GatewayMessage]) -> list[GatewayMessage]:
    """The same with batches of tokens that follow each other as one, since gRPC costs by the message: those of several
    workers, and of several steps where the gateway is behind."""
    out: list[GatewayMessage] = []
    for is_tokens, group in groupby(messages, lambda message: type(message) is TokenBatch):
        batches = list(group)
        if is_tokens and len(batches) > 1:
            columns = (chain.from_iterable(getattr(each, name) for each in batches) for name in _COLUMNS)
            out.append(TokenBatch(*map(tuple, columns)))
        else:
            out += batches
    return out


def message_to_proto(message: GatewayMessage) -> scheduler_pb2.SchedulerMessage:
    if isinstance(message, TokenBatch):
        batch = scheduler_pb2.TokenBatch(
            sequence_ids=message.sequence_ids,
            token_ids=message.token_ids,
            ends=[_end_to_proto(end) for end in message.ends],
            logprobs=[sequence_pb2.TokenLogprobs.FromString(item) for _, item in message.logprobs],
            prompt_logprobs=[sequence_pb2.PromptLogprobs.FromString(item) for _, item in message.prompt_logprobs],
        )
        return scheduler_pb2.SchedulerMessage(tokens=batch)
    if isinstance(message, Accepted):
        accepted = scheduler_pb2.RequestAccepted(
            request_key=message.request_key,
            sequence_ids=message.sequence_ids,
            queue_position=message.queue_position,
            forecast_us=_to_us(message.forecast_s),
            traffic_class=message.traffic_class,
            ttft_target_us=_to_us(message.ttft_target_s),
            gap_target_us=_to_us(message.gap_target_s),
        )
        return scheduler_pb2.SchedulerMessage(accepted=accepted)
    if isinstance(message, Refused):
        refused = scheduler_pb2.RequestRefused(
            request_key=message.request_key, failure=failure_to_proto(message.failure)
        )
        return scheduler_pb2.SchedulerMessage(refused=refused)
    if isinstance(message, CancelDone):
        done = scheduler_pb2.CancelDone(
            request_key=message.request_key,
            found=message.found,
            account=None if message.account is None else _account_to_proto(message.account),
            trail=None if message.trail is None else _trail_to_proto(message.trail),
        )
        return scheduler_pb2.SchedulerMessage(cancel_done=done)
    if isinstance(message, Unknown):
        return scheduler_pb2.SchedulerMessage(unknown=scheduler_pb2.UnknownRequests(request_keys=message.request_keys))
    if isinstance(message, Standing):
        return scheduler_pb2.SchedulerMessage(standing=_standing_to_proto(message))
    assert isinstance(message, PoolUpdate)
    pools = [
        scheduler_pb2.Pool(
            model=pool.model,
            model_revision=pool.model_revision,
            workers_live=pool.workers_live,
            max_model_len=pool.max_model_len,
            max_sequence_len=pool.max_sequence_len,
        )
        for pool in message.pools
    ]
    return scheduler_pb2.SchedulerMessage(pools=scheduler_pb2.PoolUpdate(pools=pools, complete=message.complete))


def _standing_to_proto(standing: Standing) -> scheduler_pb2.Standing:
    return scheduler_pb2.Standing(started=standing.started, term=standing.term, leaving=standing.leaving)


def _end_to_proto(end: SequenceEnd) -> scheduler_pb2.SequenceEnd:
    return scheduler_pb2.SequenceEnd(
        sequence_id=end.sequence_id,
        reason=sequence_pb2.EndReason.Name(end.reason),
        stop_token_id=end.stop_token_id,
        failure=None if end.failure is None else failure_to_proto(end.failure),
        account=_account_to_proto(end.account),
        trail=None if end.trail is None else _trail_to_proto(end.trail),
    )


def _account_to_proto(account: Account) -> scheduler_pb2.Account:
    return scheduler_pb2.Account(
        cached_tokens=account.cached_tokens,
        blocks_used=account.blocks_used,
        blocks_freed=account.blocks_freed,
        queue_us=account.queue_us,
        generated_tokens=account.generated_tokens,
        gpu_us=account.gpu_us,
    )


def _trail_to_proto(trail: CancelTrail) -> scheduler_pb2.CancelTrail:
    return scheduler_pb2.CancelTrail(
        reason=sequence_pb2.CancelReason.Name(trail.reason),
        states=[f"SEQUENCE_STATE_{state}" for state in trail.states],
        release_us=_to_us(trail.release_s),
        freed_us=_to_us(trail.freed_s),
        late_gpu_us=trail.late_gpu_us,
    )


def _to_us(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)


def fleet_to_proto(fleet: FleetView) -> operations_pb2.Fleet:
    return operations_pb2.Fleet(
        requests_waiting=fleet.requests_waiting,
        requests_running=fleet.requests_running,
        requests_paused=fleet.requests_paused,
        requests_finished=fleet.requests_finished,
        preemptions=fleet.preemptions,
        swaps=fleet.swaps,
        workers=[
            operations_pb2.WorkerStatus(
                address=worker.address,
                live=worker.live,
                model=worker.model,
                device=worker.device,
                sequences=worker.sequences,
                blocks_total=worker.blocks_total,
                blocks_free=worker.blocks.free,
                blocks_cached=worker.blocks.cached,
                blocks_used=worker.blocks.used,
                steps=worker.steps,
                tokens=worker.tokens,
                swap_blocks_total=worker.swap_blocks_total,
                swap_blocks_used=worker.swap_blocks_used,
                draining=worker.draining,
                late=worker.late,
                hung=worker.hung,
            )
            for worker in fleet.workers
        ],
    )
