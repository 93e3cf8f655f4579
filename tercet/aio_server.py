"""gRPC's asyncio server, of which no call can stop the loop that accepts calls.

That loop decodes the path of every call for which no method is registered, and ends, and the server with it, at one
that is not UTF-8 (grpcio 1.85): a single packet from anybody. Here the loop never sees such a call. And where thousands
of clients leave at once it ends all of their handlers in one turn of the event loop, in which nothing else moves; here
that takes a few turns. This reaches into grpcio; where it is made differently inside, it is left as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

import grpc
import grpc.aio
from grpc._cython import cygrpc
from grpc.aio import _server

from .ration import Ration

# Handlers that are ended in a turn of the event loop because their clients have left, of which each takes about 0.1 ms.
ENDS_A_TURN = 4
# The coroutine of a call's handler.
_HANDLER = "_handle_exceptions"

# What makes the task that waits for the next call of a method, or, of None, for one of no registered method.
_HOOK = "_make_request_call_future"


class _Core(cygrpc.AioServer):  # type: ignore[misc]
    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        if method is not None:
            waiting: asyncio.Future[Any] = super()._make_request_call_future(method)
            return waiting
        return asyncio.get_running_loop().create_task(self._refuse_unknown_calls())

    async def _refuse_unknown_calls(self) -> None:
        """Until the server stops, which it hears of as an error of the next request, as the loop does."""
        refusals: set[asyncio.Task[None]] = set()
        while True:
            call = await self._request_call()
            refusal = asyncio.create_task(_refuse(call))
            refusals.add(refusal)
            refusal.add_done_callback(refusals.discard)


async def _refuse(call: Any) -> None:
    context = cygrpc._ServicerContext(call, None, None, asyncio.get_running_loop())
    # That is how an abort ends a handler, and how it hears that the client has gone.
    with contextlib.suppress(grpc.aio.BaseError):
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no such method")


class _Server(_server.Server):  # type: ignore[misc]
    def __init__(self, options: Sequence[tuple[str, int]], interceptors: Sequence[grpc.aio.ServerInterceptor]) -> None:
        # Instead of the base's, which makes the other core.
        self._loop = cygrpc.get_working_loop()
        self._server = _Core(self._loop, None, (), interceptors, options, None)


class _HandlerTask(asyncio.Task[Any]):
    """That of a call's handler. Whoever waits for its client to leave, which is the task that makes it, ends it when
    there is a turn for that; for everybody else it is a task as any."""

    __slots__ = ("_ration", "_watcher")

    def __init__(self, ration: Ration, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._ration = ration
        self._watcher = asyncio.current_task()
        super().__init__(coro, **options)

    def cancel(self, msg: Any | None = None) -> bool:
        if asyncio.current_task(self.get_loop()) is not self._watcher:
            return super().cancel(msg)
        self._ration.do(partial(super().cancel, msg))
        return True


def _make_task(
    ration: Ration, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    if getattr(coro, "__qualname__", "") == _HANDLER:
        return _HandlerTask(ration, coro, loop=loop, **options)
    return asyncio.Task(coro, loop=loop, **options)


def make_server(
    options: Sequence[tuple[str, int]], interceptors: Sequence[grpc.aio.ServerInterceptor]
) -> grpc.aio.Server:
    """A server whose methods all have to be registered; the generated functions do that."""
    loop = cygrpc.get_working_loop()
    if loop.get_task_factory() is None:
        loop.set_task_factory(partial(_make_task, Ration(ENDS_A_TURN)))
    if hasattr(cygrpc.AioServer, _HOOK):
        return _Server(options, interceptors)
    return grpc.aio.server(options=options, interceptors=interceptors)
