"""Serves tercet.mesh.v1.Worker: moves messages between the scheduler's stream and the executor's mailbox."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import structlog

from tercet.mesh.v1 import worker_pb2, worker_pb2_grpc
from tercet.tracing.context import TraceContext
from tercet.tracing.messages import context_from_proto
from tercet.tracing.tracer import Tracer

from .codec import decode_command, encode_event
from .executor import Executor
from .messages import Attach, Detach, Draining, Event
from .traces import Traces

log = structlog.get_logger()

# A stream that says nothing must not stay.
OPEN_SECONDS = 10.0
# A worker that stops is done when it has had nothing to do for so many looks, so many seconds apart: what the scheduler
# sent before it knew is still on its way.
QUIET_LOOKS = 4
LOOK_SECONDS = 0.05


class _Attachment:
    """One scheduler's stream: the events on their way to it, and whether and why it is over."""

    def __init__(self, epoch: int, tracer: Tracer) -> None:
        self.epoch = epoch
        self.traces = Traces(tracer)
        self.problem: tuple[grpc.StatusCode, str] | None = None
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._obeyed: asyncio.Future[bool] = self._loop.create_future()

    def obeyed(self) -> None:
        """The executor has forgotten what was before and is there for this one. From its thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle, True)

    async def begins(self) -> bool:
        """Waits for the executor; False if the stream is closed before."""
        return await self._obeyed

    def emit(self, event: Event) -> None:
        """Takes an event from the executor's thread."""
        # The loop may be closed while the executor finishes its last step.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def put(self, event: Event) -> None:
        """Takes an event from the event loop itself, behind those that are there."""
        self._events.put_nowait(event)

    def close(self, code: grpc.StatusCode | None = None, problem: str = "") -> None:
        """Ends the stream after the events it has, with a status if `code` is given. The first call counts."""
        if code is not None and self.problem is None:
            self.problem = (code, problem)
        self._events.put_nowait(None)
        self._settle(False)

    def _settle(self, begins: bool) -> None:
        if not self._obeyed.done():
            self._obeyed.set_result(begins)

    async def next_events(self) -> list[Event]:
        """All events there are, at least one; empty when the stream is closed."""
        taken: list[Event] = []
        event = await self._events.get()
        while event is not None:
            taken.append(event)
            if self._events.empty():
                return taken
            event = self._events.get_nowait()
        # What came before the end is still delivered; the end is found again by the next call.
        self._events.put_nowait(None)
        return taken


class WorkerService(worker_pb2_grpc.WorkerServicer):
    """One scheduler at a time: a stream with the same or a larger epoch ends the one before it.

    Until `open` is called the model is loading, and schedulers are told to come back.
    """

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer or Tracer()
        self._executor: Executor | None = None
        self._hello = worker_pb2.Hello()
        self._attached: _Attachment | None = None
        self._draining = False
        self._found = False

    @property
    def found(self) -> bool:
        """Whether a scheduler has ever attached."""
        return self._found

    def open(self, executor: Executor, hello: worker_pb2.Hello) -> None:
        """Lets schedulers attach to a started executor."""
        self._executor = executor
        self._hello = hello

    async def drain(self) -> None:
        """Tells the scheduler that the worker stops; returns when nothing is left here, at once without a scheduler.

        A scheduler that attaches meanwhile is told, too.
        """
        self._draining = True
        if self._attached is not None:
            self._attached.put(Draining())
        quiet = 0
        while self._attached is not None and self._executor is not None and quiet < QUIET_LOOKS:
            await asyncio.sleep(LOOK_SECONDS)
            quiet = quiet + 1 if self._executor.idle else 0

    def close(self) -> None:
        """Ends the attached stream: the worker stops."""
        if self._attached is not None:
            self._attached.close(grpc.StatusCode.UNAVAILABLE, "the worker stops")

    async def Attach(
        self, request_iterator: AsyncIterator[worker_pb2.WorkerCommands], context: grpc.aio.ServicerContext
    ) -> None:
        """Runs until the scheduler leaves, another one fences it, or the worker stops."""
        executor = self._executor
        if executor is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the worker is loading its model")
            raise AssertionError("context.abort returned")
        commands = aiter(request_iterator)
        epoch = await self._read_open(commands, context)
        if self._attached is not None:
            self._attached.close(grpc.StatusCode.ABORTED, "a newer scheduler attached")
        attachment = self._attached = _Attachment(epoch, self._tracer)
        log.info("scheduler_attached", epoch=epoch, peer=context.peer())
        executor.submit(Attach(attachment.emit, attachment.obeyed))
        if self._draining:
            attachment.put(Draining())
        reader = asyncio.create_task(self._read(commands, attachment, executor))
        try:
            # Not before: a device that does not come back from a step would get work, and hang on to that, too.
            if await attachment.begins():
                await context.write(worker_pb2.WorkerEvents(events=[worker_pb2.WorkerEvent(hello=self._hello)]))
                self._found = True
                while events := await attachment.next_events():
                    for event in events:
                        attachment.traces.told(event)
                    await context.write(worker_pb2.WorkerEvents(events=map(encode_event, events)))
        finally:
            reader.cancel()
            executor.submit(Detach(attachment.emit))
            attachment.traces.detached()
            if self._attached is attachment:
                self._attached = None
            log.info("scheduler_detached", epoch=epoch)
        if attachment.problem is not None:
            await context.abort(*attachment.problem)

    async def _read_open(
        self, commands: AsyncIterator[worker_pb2.WorkerCommands], context: grpc.aio.ServicerContext
    ) -> int:
        try:
            first = await asyncio.wait_for(anext(commands, worker_pb2.WorkerCommands()), OPEN_SECONDS)
        except asyncio.TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no Open within {OPEN_SECONDS:g} s")
            raise AssertionError("context.abort returned") from None
        if [command.WhichOneof("command") for command in first.commands] != ["open"]:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be Open alone")
        epoch: int = first.commands[0].open.scheduler_epoch
        # Only while the newer one is there: its epoch may come from a clock that was wrong.
        if self._attached is not None and epoch < self._attached.epoch:
            problem = f"scheduler epoch {epoch} is older than {self._attached.epoch}, which this worker obeys"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, problem)
        return epoch

    async def _read(
        self, commands: AsyncIterator[worker_pb2.WorkerCommands], attachment: _Attachment, executor: Executor
    ) -> None:
        """Feeds the executor; closes the stream when the scheduler half-closes it or breaks the protocol."""
        try:
            async for message in commands:
                if self._attached is not attachment:
                    return
                for command in message.commands:
                    decoded = decode_command(command, self._hello)
                    attachment.traces.commanded(decoded, _context_of(command))
                    executor.submit(decoded)
        except ValueError as error:
            log.error("protocol_error", problem=str(error))
            attachment.close(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Exception:
            log.exception("commands_unreadable")
            attachment.close(grpc.StatusCode.INTERNAL, "the worker could not read the commands; its log tells why")
        finally:
            attachment.close()


def _context_of(command: worker_pb2.WorkerCommand) -> TraceContext | None:
    """The trace that a new sequence is part of."""
    if not command.HasField("new_sequence") or not command.new_sequence.HasField("trace_context"):
        return None
    return context_from_proto(command.new_sequence.trace_context)
