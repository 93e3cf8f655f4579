"""What stands before every call of a server: who may come in, how many at a time, and how long a request may take to
arrive.

gRPC by itself receives a whole request before it asks anybody, and waits for it for ever.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import structlog

from tercet import errors
from tercet.call_status import abort
from tercet.refusal_lines import RefusalLines
from tercet.retry import UNKNOWN_RETRY_SECONDS

log = structlog.get_logger()

Admit = Callable[[grpc.aio.ServicerContext], object]

# Each costs about 20 KB before its handler has done anything.
MAX_CALLS = 16_384
# Of those that ask for no key, which anybody may leave open.
MAX_OPEN_CALLS = 1_024
REQUEST_SECONDS = 30.0
# For those that ask for no key: their requests are small.
OPEN_REQUEST_SECONDS = 5.0
# Of refusals there is a line for the first one, and then one in so many seconds: nobody shall fill a log with them.
TELL_SECONDS = 10.0

_OPEN_SERVICES = ("/grpc.health.v1.Health/", "/grpc.reflection.v1alpha.ServerReflection/")
# Have an answer while everything else is full. They end with that, or after OPEN_REQUEST_SECONDS.
_PROBES = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/List"})
_SHAPES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def anyone(_: grpc.aio.ServicerContext) -> None:
    """Lets all in."""


class Door(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """`admit` raises errors.RequestError for those who may not come in; health and reflection are open to all.

    Whoever is refused has had nothing of a request received. `num_turned_away` counts those who might have come in, and
    for whom there was no room.
    """

    def __init__(
        self,
        admit: Admit = anyone,
        *,
        max_calls: int = MAX_CALLS,
        max_open_calls: int = MAX_OPEN_CALLS,
        request_s: float = REQUEST_SECONDS,
        open_request_s: float = OPEN_REQUEST_SECONDS,
    ) -> None:
        self._admit = admit
        self._max_calls = max_calls
        self._max_open_calls = max_open_calls
        self._request_s = request_s
        self._open_request_s = open_request_s
        self._calls = 0
        self._open_calls = 0
        self.num_turned_away = 0
        self._refusals = RefusalLines(log, "calls_refused", lines=1, seconds=TELL_SECONDS)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[grpc.RpcMethodHandler | None]], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        """The handler of a call behind the door. To gRPC all are streams: before one it receives nothing."""
        handler = await continuation(details)
        if handler is None:
            return None
        shape = next(shape for shape in _SHAPES if getattr(handler, shape) is not None)
        behaviour = getattr(handler, shape)

        async def handle(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
            is_open = details.method.startswith(_OPEN_SERVICES)
            self._enter(is_open)
            try:
                await self._let_in(details.method, is_open, context)
                limit_s = self._open_request_s if is_open else self._request_s
                given = requests if handler.request_streaming else await _one(context, limit_s)
                await _answer(behaviour(given, context), context, streams=handler.response_streaming)
            finally:
                self._leave(is_open)

        return grpc.stream_stream_rpc_method_handler(handle, handler.request_deserializer, handler.response_serializer)

    def _enter(self, is_open: bool) -> None:
        self._calls += 1
        self._open_calls += is_open

    def _leave(self, is_open: bool) -> None:
        self._calls -= 1
        self._open_calls -= is_open

    async def _let_in(self, method: str, is_open: bool, context: grpc.aio.ServicerContext) -> None:
        try:
            if not is_open:
                self._admit(context)
            if method not in _PROBES and (
                self._calls > self._max_calls or (is_open and self._open_calls > self._max_open_calls)
            ):
                self.num_turned_away += not is_open
                raise errors.QueueFullError("too many calls are open here", retry_after_s=UNKNOWN_RETRY_SECONDS)
        except errors.RequestError as error:
            self._refusals.tell("call_refused", reason=error.reason, method=method)
            await abort(context, error)


async def _one(context: grpc.aio.ServicerContext, limit_s: float) -> Any:
    """The one request of a call. Aborts a call whose client does not send it."""
    task = asyncio.current_task()
    assert task is not None
    late = False

    def give_up() -> None:
        nonlocal late
        late = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(limit_s, give_up)
    try:
        request = await context.read()
    except asyncio.CancelledError:
        if not late:
            raise
        await abort(context, errors.DeadlineError(f"the request did not arrive within {limit_s:g} s"))
    finally:
        timer.cancel()
    if request is grpc.aio.EOF:
        await abort(context, errors.InvalidFieldError("the call ended before its request"))
    return request


async def _answer(replying: Any, context: grpc.aio.ServicerContext, *, streams: bool) -> None:
    """Writes what a handler answers, which may also write by itself."""
    if inspect.isasyncgen(replying):
        async for reply in replying:
            await context.write(reply)
        return
    reply = await replying
    if not streams:
        await context.write(reply)
