"""What stands before every call of a server: who may come in, how many at a time, and how long a request may take to
arrive, and its answer to be read.

gRPC by itself receives a whole request before it asks anybody, and waits for it for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio
import structlog

from tercet import errors
from tercet.call_status import abort
from tercet.patience import Patience
from tercet.refusal_lines import RefusalLines
from tercet.retry import UNKNOWN_RETRY_SECONDS
from tercet.slow_reader import write

log = structlog.get_logger()

Admit = Callable[[grpc.aio.ServicerContext], object]

# Each costs about 20 KB before its handler has done anything.
MAX_CALLS = 16_384
# Of those that ask for no key, which anybody may leave open.
MAX_OPEN_CALLS = 1_024
REQUEST_SECONDS = 30.0
# For those that ask for no key: their requests are small.
OPEN_REQUEST_SECONDS = 5.0
# How long an answer waits for somebody to read it.
STALL_SECONDS = 60.0
# Of refusals there is a line for the first one, and then one in so many seconds: nobody shall fill a log with them.
TELL_SECONDS = 10.0

# Probes whose request has not come.
MAX_HALF_PROBES = 256
# Probes in all. So many there are only of those whose answer nobody reads, which nothing but their client can end.
MAX_PROBES = 4_096

_OPEN_SERVICES = ("/grpc.health.v1.Health/", "/grpc.reflection.v1alpha.ServerReflection/")
# Have an answer while everything else is full, and take no place from anybody.
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
        max_probes: int = MAX_PROBES,
        stall_s: float = STALL_SECONDS,
    ) -> None:
        self._admit = admit
        self._max_calls = max_calls
        self._max_open_calls = max_open_calls
        self._request_s = request_s
        self._open_request_s = open_request_s
        self._max_probes = max_probes
        self._stall_s = stall_s
        self._calls = 0
        self._open_calls = 0
        self._probes = 0
        # Those whose request has not come, the oldest first.
        self._half_probes: OrderedDict[Patience, None] = OrderedDict()
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
            patience = Patience(self._open_request_s if is_open else self._request_s)
            self._enter(is_open, is_probe)
            try:
                self._let_in(is_open, is_probe, context)
                with self._awaiting(patience, is_probe):
                    given = requests if handler.request_streaming else await _one(context, patience)
                replying = behaviour(given, context)
                await _answer(replying, context, self._stall_s, streams=handler.response_streaming)
            except errors.RequestError as error:
                self._refusals.tell("call_refused", reason=error.reason, method=method)
                await abort(context, error)
            finally:
                self._leave(is_open, is_probe)

        return grpc.stream_stream_rpc_method_handler(handle, handler.request_deserializer, handler.response_serializer)

    def _enter(self, is_open: bool, is_probe: bool) -> None:
        self._calls += not is_probe
        self._probes += is_probe
        self._open_calls += is_open and not is_probe

    def _leave(self, is_open: bool, is_probe: bool) -> None:
        self._calls -= not is_probe
        self._probes -= is_probe
        self._open_calls -= is_open and not is_probe

    def _let_in(self, is_open: bool, is_probe: bool, context: grpc.aio.ServicerContext) -> None:
        if not is_open:
            self._admit(context)
        if is_probe:
            full = self._probes > self._max_probes
        else:
            full = self._calls > self._max_calls or (is_open and self._open_calls > self._max_open_calls)
        if full:
            self.num_turned_away += not is_open
            raise errors.QueueFullError("too many calls are open here", retry_after_s=UNKNOWN_RETRY_SECONDS)

    @contextlib.contextmanager
    def _awaiting(self, patience: Patience, is_probe: bool) -> Iterator[None]:
        """While the request of a call is on its way. That of a probe comes with its headers: where there are too many
        without, the oldest goes, not the next one, which may be honest."""
        if not is_probe:
            yield
            return
        self._half_probes[patience] = None
        if len(self._half_probes) > MAX_HALF_PROBES:
            self._half_probes.popitem(last=False)[0].give_up()
        try:
            yield
        finally:
            self._half_probes.pop(patience, None)


async def _one(context: grpc.aio.ServicerContext, patience: Patience) -> Any:
    """The one request of a call. Raises DeadlineError for a client that does not send it."""
    try:
        request = await patience.spend_on(context.read())
    except asyncio.TimeoutError:
        raise errors.DeadlineError("the request did not arrive in time") from None
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
