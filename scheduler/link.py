"""The stream to one worker: dials, says Open, hears Hello, and dials again for ever when it breaks.

Translates the worker's contract to and from plain values; has no policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import structlog

from tercet import errors
from tercet.dialer import Dialer
from tercet.failure import failure_from_proto
from tercet.mesh.v1 import worker_pb2, worker_pb2_grpc
from tercet.tracing.messages import context_to_proto

from .actions import NewSequence, Plan, Release, Rest, Resume, WorkerCommand
from .claims import Claims
from .events import (
    BlockCounts,
    Ended,
    EndReason,
    Event,
    KvChanged,
    PlanEnded,
    PrefillProgress,
    SequenceReleased,
    SequenceRests,
    StepReported,
    WorkerAttached,
    WorkerDraining,
    WorkerInfo,
)
from .loop import Loop
from .outbox import Outbox, OutboxClosedError
from .wire import enum_value, sampling_to_proto

HELLO_TIMEOUT_SECONDS = 10.0
BACKOFF_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.0)
# How often the second address of a worker looks whether it is needed.
STAND_BY_SECONDS = 0.5


class ContractError(Exception):
    """The worker said something the contract does not allow."""


# What a stream that breaks may raise; InvalidStateError comes from writing to one that is already over.
STREAM_ERRORS = (grpc.RpcError, ContractError, OutboxClosedError, asyncio.InvalidStateError)


class _AliasError(Exception):
    """The worker is known by another address."""

    def __init__(self, worker_id: str, address: str) -> None:
        super().__init__(address)
        self.worker_id = worker_id


class WorkerLink:
    """One address of a worker; every stream that comes up there is a new worker to the core."""

    def __init__(
        self, dialer: Dialer, loop: Loop, epoch: int, claims: Claims, on_alias: Callable[[], None] = lambda: None
    ) -> None:
        """`dialer` has the address. `epoch` is the scheduler's: of two on one worker, the one that started later stays
        and the other waits.

        `on_alias` is called when `alias` changes.
        """
        # Not to be dialled again; the stream that it has may end in peace.
        self.retired = False
        # Another address leads to the same worker.
        self.alias = False
        self._dialer = dialer
        self._address = dialer.address
        self._epoch = epoch
        self._loop = loop
        self._claims = claims
        self._on_alias = on_alias
        self._log = structlog.get_logger().bind(address=dialer.address)

    async def run(self) -> None:
        """Until cancelled, or retired and without a stream."""
        failures = 0
        try:
            while not self.retired:
                try:
                    await self._dialer.renew()
                    await self._session(self._dialer.channel)
                    # It was up: the next failure is news.
                    failures = 0
                except _AliasError as error:
                    await self._stand_by(error)
                except STREAM_ERRORS as error:
                    # By another address it may be within reach.
                    self._claims.release(self._address)
                    if failures == 0:
                        self._log.warning("worker_unreachable", problem=_problem(error))
                    failures += 1
                await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS)) - 1] if failures else 0.1)
        finally:
            self._claims.release(self._address)
            await self._dialer.close()

    async def _stand_by(self, error: _AliasError) -> None:
        """Waits until the address that has the worker loses it."""
        self._log.info("worker_known_by_another_address", worker_id=error.worker_id, other=str(error))
        self.alias = True
        self._on_alias()
        while not self.retired and not self._claims.free(error.worker_id):  # noqa: ASYNC110 - either may end it
            await asyncio.sleep(STAND_BY_SECONDS)
        self.alias = False
        self._on_alias()

    async def _session(self, channel: grpc.aio.Channel) -> None:
        """One stream. Raises only if it never came up; otherwise it returns when the stream is over."""
        stub: Any = worker_pb2_grpc.WorkerStub(channel)
        call = stub.Attach()
        try:
            info = await self._hello(call)
            holder = self._claims.claim(info.worker_id, self._address)
            if holder != self._address:
                raise _AliasError(info.worker_id, holder)
            link, outbox = self._loop.open_worker()
            try:
                self._loop.post(WorkerAttached(link, self._address, info))
                await self._exchange(call, link, outbox)
            finally:
                self._loop.close_worker(link)
        finally:
            # Leaving the scope ends the stream, whatever the reason.
            call.cancel()

    async def _hello(self, call: Any) -> WorkerInfo:
        greeting = asyncio.create_task(self._greet(call))
        try:
            # Not wait_for: up to Python 3.11 that loses a cancel which comes with the hello.
            await asyncio.wait({greeting}, timeout=HELLO_TIMEOUT_SECONDS)
            if not greeting.done():
                raise ContractError(f"no hello within {HELLO_TIMEOUT_SECONDS:g} s")
            return greeting.result()
        finally:
            greeting.cancel()

    async def _greet(self, call: Any) -> WorkerInfo:
        # The same at every dial: the worker gives up a stream of ours that we lost and it did not.
        opening = worker_pb2.Open(scheduler_epoch=self._epoch)
        await call.write(worker_pb2.WorkerCommands(commands=[worker_pb2.WorkerCommand(open=opening)]))
        message = await call.read()
        if message is grpc.aio.EOF:
            # Raises the status of a stream that failed.
            code = await call.code()
            raise ContractError(f"the stream ended before hello: {code}")
        if [event.WhichOneof("event") for event in message.events] != ["hello"]:
            raise ContractError("the first message was not a hello alone")
        return info_from_proto(message.events[0].hello)

    async def _exchange(self, call: Any, link: int, outbox: Outbox[WorkerCommand]) -> None:
        reader = asyncio.create_task(self._read(call, link))
        writer = asyncio.create_task(self._write(call, outbox))
        try:
            done, _ = await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                problem = task.exception()
                if problem is not None:
                    self._log.warning("worker_stream_broke", problem=_problem(problem))
                    if not isinstance(problem, STREAM_ERRORS):
                        raise problem
        finally:
            for task in (reader, writer):
                task.cancel()
            # First: a cancel that a read does not hear of ends with the stream.
            call.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _read(self, call: Any, link: int) -> None:
        while (message := await call.read()) is not grpc.aio.EOF:
            for event in message.events:
                self._loop.post(event_from_proto(event, link))

    async def _write(self, call: Any, outbox: Outbox[WorkerCommand]) -> None:
        while True:
            commands = await outbox.take_all()
            await call.write(worker_pb2.WorkerCommands(commands=map(self._to_proto, commands)))

    def _to_proto(self, command: WorkerCommand) -> worker_pb2.WorkerCommand:
        message = command_to_proto(command)
        if isinstance(command, NewSequence) and self._loop.traces:
            context = context_to_proto(self._loop.traces.context_of(command.sequence_id))
            if context is not None:
                message.new_sequence.trace_context.CopyFrom(context)
        return message


def _problem(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"


def command_to_proto(command: WorkerCommand) -> worker_pb2.WorkerCommand:
    if isinstance(command, NewSequence):
        new = worker_pb2.NewSequence(
            sequence_id=command.sequence_id,
            token_ids=command.token_ids,
            max_length=command.max_length,
            stop_token_ids=command.stop_token_ids,
            sampling=sampling_to_proto(command.sampling),
            prefix_salt=command.prefix_salt,
            forks=[worker_pb2.Fork(sequence_id=key, seed=seed) for key, seed in command.forks],
        )
        return worker_pb2.WorkerCommand(new_sequence=new)
    if isinstance(command, Plan):
        plan = worker_pb2.Plan(
            plan_seq=command.plan_seq,
            num_steps=command.num_steps,
            chunks=[worker_pb2.Chunk(sequence_id=key, num_tokens=count) for key, count in command.chunks],
            join=command.join,
            revoke_through=command.revoke_through,
        )
        return worker_pb2.WorkerCommand(plan=plan)
    if isinstance(command, Resume):
        return worker_pb2.WorkerCommand(resume=worker_pb2.Resume(sequence_ids=command.sequence_ids))
    if isinstance(command, Rest):
        return worker_pb2.WorkerCommand(rest=worker_pb2.Rest(sequence_ids=command.sequence_ids))
    assert isinstance(command, Release)
    cause = worker_pb2.ReleaseCause.Name(command.cause)
    return worker_pb2.WorkerCommand(release=worker_pb2.Release(sequence_ids=command.sequence_ids, cause=cause))


def info_from_proto(hello: worker_pb2.Hello) -> WorkerInfo:
    """Raises ContractError if a size that must be positive is not."""
    info = WorkerInfo(
        worker_id=hello.worker_id,
        epoch=hello.epoch,
        model=hello.model,
        model_revision=hello.model_revision,
        device=hello.device,
        dtype=hello.dtype,
        block_size=hello.block_size,
        num_blocks=hello.num_blocks,
        max_num_seqs=hello.max_num_seqs,
        max_num_batched_tokens=hello.max_num_batched_tokens,
        max_model_len=hello.max_model_len,
        vocab_size=hello.vocab_size,
        num_swap_blocks=hello.num_swap_blocks,
        swap_block_ns=hello.swap_block_ns,
    )
    for name in ("block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "vocab_size"):
        if getattr(info, name) < 1:
            raise ContractError(f"hello.{name} is {getattr(info, name)}")
    for name in ("worker_id", "model"):
        if not getattr(info, name):
            raise ContractError(f"hello.{name} is empty")
    return info


def event_from_proto(event: worker_pb2.WorkerEvent, link: int) -> Event:
    """Raises ContractError."""
    kind = event.WhichOneof("event")
    if kind == "step":
        step = event.step
        if len(step.sequence_ids) != len(step.token_ids):
            raise ContractError("the columns of a step result differ in length")
        return StepReported(
            link=link,
            plan_seq=step.plan_seq,
            step=step.step,
            # A slice is a list, which is read in half the time that the column itself takes.
            sequence_ids=tuple(step.sequence_ids[:]),
            token_ids=tuple(step.token_ids[:]),
            prefills=tuple(PrefillProgress(p.sequence_id, p.num_computed, p.num_cached) for p in step.prefills),
            ended=tuple(_ended_from_proto(ended) for ended in step.ended),
            blocks=_counts_from_proto(step.blocks),
            step_us=step.step_us,
            logprobs=tuple((item.sequence_id, item.SerializeToString()) for item in step.logprobs),
            prompt_logprobs=tuple((item.sequence_id, item.SerializeToString()) for item in step.prompt_logprobs),
        )
    if kind == "plan_done":
        done = event.plan_done
        return PlanEnded(
            link, done.plan_seq, done.steps_run, done.revoked, _counts_from_proto(done.blocks), tuple(done.step_us)
        )
    if kind == "released":
        gone = event.released
        return SequenceReleased(
            link=link,
            sequence_id=gone.sequence_id,
            found=gone.found,
            blocks_used=gone.blocks_used,
            blocks_freed=gone.blocks_freed,
            blocks=_counts_from_proto(gone.blocks),
            swapped=gone.swapped,
        )
    if kind == "resting":
        rests = event.resting
        return SequenceRests(link, rests.sequence_id, rests.found, _counts_from_proto(rests.blocks))
    if kind == "kv":
        return KvChanged(link, event.kv.reset, tuple(event.kv.removed), tuple(event.kv.stored))
    if kind == "draining":
        return WorkerDraining(link)
    raise ContractError(f"unexpected event {kind}")


def _ended_from_proto(ended: worker_pb2.Ended) -> Ended:
    reason = enum_value(EndReason, ended.reason)
    failure: errors.RequestError | None = None
    if reason not in (EndReason.STOP, EndReason.LENGTH):
        reason = EndReason.FAILED
        failure = errors.EngineFaultError("the worker ended the sequence without saying why")
        if ended.HasField("failure"):
            failure = failure_from_proto(ended.failure)
    return Ended(
        sequence_id=ended.sequence_id,
        reason=reason,
        stop_token_id=ended.stop_token_id,
        failure=failure,
        blocks_used=ended.blocks_used,
        blocks_freed=ended.blocks_freed,
    )


def _counts_from_proto(counts: worker_pb2.BlockCounts) -> BlockCounts:
    return BlockCounts(counts.free, counts.cached, counts.used)
