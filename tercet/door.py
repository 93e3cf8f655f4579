"""What stands before every call of a server: who may come in, how many at a time, and how long a request may take to
arrive, and its answer to be read.

gRPC by itself receives a whole request before it asks anybody, and waits for it for ever.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import structlog

from tercet import errors
from tercet.call_status import abort
from tercet.patience import within
from tercet.refusal_lines import RefusalLines
from tercet.retry import UNKNOWN_RETRY_SECONDS
from tercet.slow_reader import write

log = structlog.get_logger()

Admit = Callable[[grpc.aio.ServicerContext], object]

# Each costs about 20 KB before its handler has done anything.
MAX_CALLS = 16_384
# Of those that ask for no key, which anybody may leave open, and of probes.
MAX_OPEN_CALLS = 1_024
REQUEST_SECONDS = 30.0
# For those that ask for no key: their requests are small.
OPEN_REQUEST_SECONDS = 5.0
# How long an answer waits for somebody to read it.
STALL_SECONDS = 60.0
# Of refusals there is a line for the first one, and then one in so many seconds: nobody shall fill a log with them.
TELL_SECONDS = 10.0

_OPEN_SERVICES = ("/grpc.health.v1.Health/", "/grpc.reflection.v1alpha.ServerReflection/")
# Have an answer while everything else is full, and take no place from anybody. Strangers can leave them open, with half
# a request, or an answer that they do not read. Where there are too many, each connection has one at a time: whoever
# comes with his own is answered, and connections are bounded.
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
        stall_s: float = STALL_SECONDS,
    ) -> None:
        self._admit = admit
        self._max_calls = max_calls
        self._max_open_calls = max_open_calls
        self._request_s = request_s
        self._open_request_s = open_request_s
        self._stall_s = stall_s
        self._calls = 0
        self._open_calls = 0
        self._probes = 0
        # By connection.
        self._probes_of: Counter[str] = Counter()
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
            method = details.method
            is_open, is_probe = method.startswith(_OPEN_SERVICES), method in _PROBES
            limit_s = self._open_request_s if is_open else self._request_s
            # Of whoever is on the other end of this connection.
            peer = context.peer() if is_probe else ""
            self._enter(is_open, peer)
            try:
                self._let_in(is_open, peer, context)
                given = requests if handler.request_streaming else await _one(context, limit_s)
                replying = behaviour(given, context)
                await _answer(replying, context, self._stall_s, streams=handler.response_streaming)
            except errors.RequestError as error:
                self._refusals.tell("call_refused", reason=error.reason, method=method)
                await abort(context, error)
            except grpc.aio.AbortError as ended:
                # The call keeps it: with the frames that it came through, and all that these have, until the garbage
                # collector looks.
                ended.__context__ = None
                raise ended.with_traceback(None) from None
            finally:
                self._leave(is_open, peer)
                del context, requests
                given = replying = None

        return grpc.stream_stream_rpc_method_handler(handle, handler.request_deserializer, handler.response_serializer)

    def _enter(self, is_open: bool, peer: str) -> None:
        if peer:
            self._probes += 1
            self._probes_of[peer] += 1
        else:
            self._calls += 1
            self._open_calls += is_open

    def _leave(self, is_open: bool, peer: str) -> None:
        if not peer:
            self._calls -= 1
            self._open_calls -= is_open
            return
        self._probes -= 1
        self._probes_of[peer] -= 1
        if not self._probes_of[peer]:
            del self._probes_of[peer]

    def _let_in(self, is_open: bool, peer: str, context: grpc.aio.ServicerContext) -> None:
        if not is_open:
            self._admit(context)
        if peer:
            full = self._probes > self._max_open_calls and self._probes_of[peer] > 1
        else:
            full = self._calls > self._max_calls or (is_open and self._open_calls > self._max_open_calls)
        if full:
            self.num_turned_away += not is_open
            raise errors.QueueFullError("too many calls are open here", retry_after_s=UNKNOWN_RETRY_SECONDS)


async def _one(context: grpc.aio.ServicerContext, limit_s: float) -> Any:
    """The one request of a call. Raises DeadlineError for a client that does not send it."""
    try:
        request = await within(limit_s, context.read())
    except asyncio.TimeoutError:
        raise errors.DeadlineError(f"the request did not arrive within {limit_s:g} s") from None
    if request is grpc.aio.EOF:
        raise errors.InvalidFieldError("the call ended before its request")
    return request


async def _answer(replying: Any, context: grpc.aio.ServicerContext, stall_s: float, *, streams: bool) -> None:
    """Writes what a handler answers, which may also write by itself. Raises SlowConsumerError if nobody reads it."""
    if inspect.isasyncgen(replying):
        async for reply in replying:
            await context.write(reply)
        return
    reply = await replying
    if not streams:
        await write(context, reply, stall_s, first=True)
