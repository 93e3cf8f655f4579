"""The ASGI application: who may call what, and typed errors as answers. Before each handler stands what stands before
gRPC's: a key, room, and a bound on how long a request may take to arrive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from tercet.door import MAX_CALLS, REQUEST_SECONDS, TELL_SECONDS
from tercet.errors import QueueFullError, RequestError, SlowConsumerError
from tercet.own_host import is_own_host
from tercet.refusal_lines import RefusalLines
from tercet.retry import UNKNOWN_RETRY_SECONDS

from ..caller import ANYONE, Caller
from ..guard import Guard
from .delivery import typed_end
from .exchange import REQUEST_ID, ClientGoneError, Exchange
from .failures import HttpError, failure_of
from .generating import DEADLINE, TRAFFIC_CLASS, Generating
from .json_body import read_object
from .looking_up import LookingUp
from .metrics import Metrics
from .web import Web

log = structlog.get_logger()

Handler = Callable[[Exchange, Caller, Mapping[str, Any]], Coroutine[Any, Any, None]]
_EXCHANGE = "tercet.exchange"


class Application:
    """At most `max_calls` at a time, whose requests have `request_s` seconds to arrive. Without `web` there is no
    console, without `metrics` none are told. With `own_host` nothing is answered that was meant for another host (see
    tercet/own_host.py)."""

    def __init__(
        self,
        guard: Guard,
        generating: Generating,
        looking_up: LookingUp,
        web: Web | None = None,
        metrics: Metrics | None = None,
        *,
        max_calls: int = MAX_CALLS,
        request_s: float = REQUEST_SECONDS,
        own_host: str | None = None,
    ) -> None:
        self._guard = guard
        self._own_host = own_host
        self._max_body_bytes = generating.max_body_bytes
        self._max_calls = max_calls
        self._request_s = request_s
        self._calls = 0
        self._refusals = RefusalLines(log, "http_calls_refused", lines=1, seconds=TELL_SECONDS)
        get, post = ["GET"], ["POST"]
        self._router = Router(
            [
                Route("/v1/models", self._endpoint(looking_up.models, body=False), methods=get),
                Route("/v1/models/{name:path}", self._endpoint(looking_up.model, body=False), methods=get),
                Route("/v1/completions", self._endpoint(generating.completion), methods=post),
                Route("/v1/chat/completions", self._endpoint(generating.chat), methods=post),
                Route("/v1/embeddings", self._endpoint(looking_up.embeddings), methods=post),
                Route("/tokenize", self._endpoint(looking_up.tokenize), methods=post),
                Route("/detokenize", self._endpoint(looking_up.detokenize), methods=post),
                Route("/health", self._endpoint(looking_up.health, body=False, key=False), methods=get),
                *(() if metrics is None else [self._metrics(metrics)]),
                *(() if web is None else self._console(web)),
            ],
            redirect_slashes=False,
            default=_no_such_path,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        exchange = Exchange(scope, receive, send)
        # With an application in it, the router raises what it refuses.
        scope["app"] = self
        scope[_EXCHANGE] = exchange
        self._calls += 1
        try:
            await self._router(scope, receive, send)
        except ClientGoneError:
            pass
        except HttpError as error:
            self._tell_refused(error.failure.code, exchange)
            await exchange.fail(error.failure, error.headers)
        except HTTPException as error:
            refused = HttpError(error.status_code, "method_not_allowed", f"{scope['method'][:16]} is not for this path")
            await exchange.fail(refused.failure, error.headers or {})
        except Exception as error:
            told = typed_end(error, request_id=exchange.request_id)
            assert told is not None
            # Who does not read is not waited for.
            waits = not isinstance(told, SlowConsumerError)
            await exchange.fail(failure_of(told, exchange.renamed), {}, waits=waits)
        finally:
            self._calls -= 1

    def _tell_refused(self, reason: str, exchange: Exchange) -> None:
        path = exchange.scope["path"][:128]
        self._refusals.tell("call_refused", reason=reason, path=path, request_id=exchange.request_id)

    def _metrics(self, metrics: Metrics) -> Route:
        return Route("/metrics", self._endpoint(metrics.read, body=False), methods=["GET"])

    def _console(self, web: Web) -> Iterator[Route]:
        for path in web.paths:
            yield Route(path, self._endpoint(web.file, body=False, key=False), methods=["GET"])
        yield Route("/console/about", self._endpoint(web.about, body=False), methods=["GET"])
        yield Route("/console/mesh", self._endpoint(web.mesh, body=False), methods=["GET"])

    def _endpoint(self, handler: Handler, *, body: bool = True, key: bool = True) -> _Endpoint:
        async def handle(exchange: Exchange) -> None:
            self._check_host(exchange)
            self._check_head(exchange)
            caller = self._let_in(exchange) if key else ANYONE
            given = await self._receive(exchange) if body else {}
            await exchange.while_there(handler(exchange, caller, given))

        return _Endpoint(handle)

    def _check_host(self, exchange: Exchange) -> None:
        if self._own_host is None or is_own_host(exchange.headers.get("host", ""), self._own_host):
            return
        raise HttpError(
            421, "misdirected_request", "a gateway that asks for no keys answers as localhost, or by its address, alone"
        )

    def _check_head(self, exchange: Exchange) -> None:
        """Raises HttpError for a head that may mean two things: to this server one, and another to one before it."""
        for name in (REQUEST_ID, TRAFFIC_CLASS, DEADLINE):
            if len(exchange.headers.getlist(name)) > 1:
                raise HttpError(400, "bad_request", f"{name} stands there twice")
        if "transfer-encoding" in exchange.headers and "content-length" in exchange.headers:
            # How much of what follows is its body is not sure.
            raise HttpError(
                400, "bad_request", "it has both content-length and transfer-encoding", {"connection": "close"}
            )

    async def _receive(self, exchange: Exchange) -> Mapping[str, Any]:
        """The body. Raises RequestError, HttpError, ClientGoneError."""
        body = await exchange.body(self._max_body_bytes, self._request_s)
        try:
            return read_object(body)
        except RequestError as error:
            self._tell_refused(error.reason, exchange)
            raise

    def _let_in(self, exchange: Exchange) -> Caller:
        """Who calls, before anything of the body is received. Raises RequestError."""
        try:
            caller = self._guard.caller_of(exchange.headers.items())
            if self._calls > self._max_calls:
                raise QueueFullError("too many calls are open here", retry_after_s=UNKNOWN_RETRY_SECONDS)
        except RequestError as error:
            self._tell_refused(error.reason, exchange)
            raise
        return caller


class _Endpoint:
    """What the router takes for an application of its own, and so leaves alone."""

    def __init__(self, handle: Callable[[Exchange], Awaitable[None]]) -> None:
        self._handle = handle

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        await self._handle(scope[_EXCHANGE])


async def _no_such_path(scope: Scope, _receive: Receive, _send: Send) -> None:
    raise HttpError(404, "not_found", f"there is nothing at {scope['path'][:128]!r}")
