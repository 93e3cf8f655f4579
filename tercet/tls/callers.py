"""Which service calls: its certificate says so, and only one kind may call each other kind."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from tercet import errors, rpc

_DOMAIN = "tercet.internal"
_SHAPES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
# Whoever has a certificate of the mesh may ask how a service is.
_HEALTH = "/grpc.health.v1.Health/"


def name_of(service: str) -> str:
    """The DNS name by which a certificate is that of a gateway, scheduler or worker, wherever it runs."""
    return f"{service}.{_DOMAIN}"


class CallerCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets those call whose certificate has the name `caller`; the connection has made sure that it is theirs."""

    def __init__(self, caller: str) -> None:
        self._caller = caller

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[grpc.RpcMethodHandler]], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        """The handler of a call, which first looks who calls."""
        handler = await continuation(details)
        if handler is None or details.method.startswith(_HEALTH):
            return handler
        shape = next(shape for shape in _SHAPES if getattr(handler, shape) is not None)
        return handler._replace(**{shape: self._checked(getattr(handler, shape))})

    def _checked(self, behaviour: Callable[..., Any]) -> Callable[..., Any]:
        async def stream(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            await self._check(context)
            async for reply in behaviour(request, context):
                yield reply

        async def answer(request: Any, context: grpc.aio.ServicerContext) -> Any:
            await self._check(context)
            return await behaviour(request, context)

        return stream if inspect.isasyncgenfunction(behaviour) else answer

    async def _check(self, context: grpc.aio.ServicerContext) -> None:
        names = context.auth_context().get("x509_subject_alternative_name", ())
        if self._caller.encode() not in names:
            await rpc.abort(context, errors.PermissionDeniedError(f"only {self._caller} may call this service"))
