"""gRPC's asyncio server, of which no call can stop the loop that accepts calls.

That loop decodes the path of every call for which no method is registered, and ends, and the server with it, at one
that is not UTF-8 (grpcio 1.85): a single packet from anybody. Here the loop never sees such a call. This reaches into
grpcio; where it is made differently inside, it is left as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
from grpc._cython import cygrpc
from grpc.aio import _server

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


def make_server(
    options: Sequence[tuple[str, int]], interceptors: Sequence[grpc.aio.ServerInterceptor]
) -> grpc.aio.Server:
    """A server whose methods all have to be registered; the generated functions do that."""
    if hasattr(cygrpc.AioServer, _HOOK):
        return _Server(options, interceptors)
    return grpc.aio.server(options=options, interceptors=interceptors)
