"""One HTTP request and its answer, over ASGI: a body within bounds, JSON or events back, and whether the client is
still there. Knows no models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Coroutine, Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from tercet.errors import InvalidFieldError
from tercet.ids import new_request_id

from ..request_id import check_request_id
from .connection import LAST_WORDS
from .failures import Failure, HttpError

# A header of requests and answers.
REQUEST_ID = "x-request-id"
_JSON = "application/json"
_EVENTS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


def encode_json(value: Any) -> bytes:
    """Compact JSON in UTF-8. What is no kind of JSON is a list of what it has."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=list)
    return text.encode("utf-8", "replace")


class ClientGoneError(Exception):
    """The client left before it had sent all."""


class Exchange:
    """`started` says whether the answer has begun; `body` has to be called first where there is one. `request_id` is
    the client's, or a new one."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.headers = Headers(scope=scope)
        self.request_id = _request_id(self.headers.get(REQUEST_ID, ""))
        self.started = False
        self._completed = False
        # Parameters that this call names otherwise than usual.
        self.renamed: Mapping[str, str] = {}
        self._receive = receive
        self._send = send

    async def body(self, max_bytes: int, limit_s: float) -> bytes:
        """The whole body. Raises HttpError for one that is no JSON by its type, too large or too late, and
        ClientGoneError."""
        # No page of a browser can send this type to another host unasked.
        if self.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
            raise HttpError(415, "unsupported_media_type", f"the body must be JSON, as content-type: {_JSON}")
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise HttpError(415, "unsupported_media_type", "the body must not be compressed")
        # The server has checked that it is a number.
        if int(self.headers.get("content-length", "0")) > max_bytes:
            raise _too_large(max_bytes)
        try:
            return await asyncio.wait_for(self._read(max_bytes), limit_s)
        except asyncio.TimeoutError:
            raise HttpError(408, "request_timeout", f"the body did not arrive within {limit_s:g} s") from None

    async def while_there(self, work: Coroutine[Any, Any, None]) -> None:
        """Does what answers; it is cancelled if the client goes away before it has its answer."""
        working = asyncio.create_task(work)
        watching = asyncio.create_task(self._until_gone())
        try:
            await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            if not working.done():
                working.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)
        if not working.cancelled():
            working.result()

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str], kind: str = _JSON) -> None:
        """The whole answer. Waits until the client has read it, but for what buffers hold."""
        await self._start(status, {"content-type": kind, "content-length": str(len(body)), **headers})
        self._completed = True
        # Only the next piece waits for the one before.
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    async def fail(self, failure: Failure, headers: Mapping[str, str], *, waits: bool = True) -> None:
        """An error: as the answer, or, if that has begun, as the event that ends it, which `waits` for the client."""
        if not self.started:
            named = {REQUEST_ID: self.request_id}
            await self.answer(failure.status, failure.body, {**failure.headers, **named, **headers})
        elif not self._completed:
            if not waits:
                self.scope[LAST_WORDS]()
            await self.event(failure.body)
            await self.end_events()

    async def start_events(self, headers: Mapping[str, str]) -> None:
        """The beginning of an answer in events."""
        await self._start(200, {**_EVENTS, **headers})

    def event(self, data: bytes) -> Awaitable[None]:
        """One event. Waits while the client does not read."""
        return self._send({"type": "http.response.body", "body": b"data: %b\n\n" % data, "more_body": True})

    async def end_events(self) -> None:
        """The end of an answer in events."""
        self._completed = True
        await self._send({"type": "http.response.body", "body": b""})

    async def _read(self, max_bytes: int) -> bytes:
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            body += message.get("body", b"")
            if len(body) > max_bytes:
                raise _too_large(max_bytes)
            if not message.get("more_body", False):
                return bytes(body)

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _request_id(given: str) -> str:
    """What a request is called from its first moment on: as its client wants, if it may."""
    try:
        check_request_id(given)
    except InvalidFieldError:
        given = ""
    return given or new_request_id()


def _too_large(max_bytes: int) -> HttpError:
    return HttpError(413, "request_too_large", f"the body has more than {max_bytes} bytes")
