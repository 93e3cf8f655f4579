"""A connection of HTTP/1.1 clients, with the bounds that uvicorn's own has not: on how long a request's head may take
to come, on what is left of a body that nobody wants, and on a client that does not read."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from tercet.door import REQUEST_SECONDS
from tercet.open_files import max_connections
from tercet.ration import Ration

from .failures import HttpError

# Longer than clients keep a connection open, which then never meets its end in the middle of a request.
IDLE_SECONDS = 75
HEAD_SECONDS = 10.0
# For the rest of a body, behind an answer that did not wait for it: who still sends it may read only then.
REST_SECONDS = REQUEST_SECONDS
# Behind the moment at which a request was given up because its client did not read.
STALL_SLACK_SECONDS = 1.0
# What may wait for a client in this process, and in the kernel: what is beyond that holds the request up.
WRITE_BUFFER_BYTES = 16 * 1024
SEND_BUFFER_BYTES = 64 * 1024
# In the scope of each request: the connection's `last_words`.
LAST_WORDS = "tercet.last_words"


class Connection(H11Protocol):
    """`stall_s` is how long a client may read nothing of what there is for it. What a client had that is gone ends when
    `ends` has a turn for that."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, app_state: dict[str, Any], stall_s: float, ends: Ration
    ) -> None:
        super().__init__(config, state, app_state)
        self._ends = ends
        self._stall_s = stall_s
        self._head: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        if len(self.connections) > max_connections():
            transport.abort()
            return
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """A client has sent something."""
        super().data_received(data)
        self._watch()

    def handle_events(self) -> None:
        """Requests may have begun."""
        super().handle_events()
        if self.scope is not None:
            self.scope[LAST_WORDS] = self.last_words  # type: ignore[literal-required]

    def last_words(self) -> None:
        """An answer is given up since its client does not read: what ends it is written behind what it has not read,
        without waiting for room, and then the connection is closed. Its client has as long as before to read it."""
        if self.flow.write_paused:
            self.cycle.keep_alive = False
            self.flow.resume_writing()
            if self._stalled is not None:
                self._stalled.cancel()
                self._stalled = None
            self._abort_unless_read()

    def connection_lost(self, exc: Exception | None) -> None:
        """A client has gone."""
        for timer in (self._head, self._rest, self._stalled):
            if timer is not None:
                timer.cancel()
        self._ends.do(partial(super().connection_lost, exc))

    def pause_writing(self) -> None:
        """A client is behind."""
        super().pause_writing()
        self._abort_unless_read()

    def resume_writing(self) -> None:
        """A client has read."""
        if self._stalled is not None and not self.transport.is_closing():
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def on_response_complete(self) -> None:
        """An answer has been written."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_unless_read()
        if self.conn.their_state is h11.SEND_BODY:
            self._rest = self.loop.call_later(REST_SECONDS, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        """Nobody has asked for anything for long."""
        super().timeout_keep_alive_handler()
        self._abort_unless_read()

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP, where it does not stand in the middle of an answer."""
        failure = HttpError(400, "bad_request", msg).failure
        headers = [("content-type", "application/json"), ("connection", "close")]
        try:
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=failure.body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            self.transport.abort()
        else:
            self.transport.close()
            self._abort_unless_read()

    def _abort_unless_read(self) -> None:
        """A connection that is closed lives on until its client has read what was written."""
        if self._stalled is None:
            self._stalled = self.loop.call_later(self._stall_s + STALL_SLACK_SECONDS, self.transport.abort)

    def _watch(self) -> None:
        """Sees to it that what a client has begun, it ends."""
        state = self.conn.their_state
        if self._rest is not None and state is not h11.SEND_BODY:
            self._rest.cancel()
            self._rest = None
            if state is h11.IDLE:
                # uvicorn did this behind the answer, and took it back when the rest of the body came.
                self.timeout_keep_alive_task = self.loop.call_later(IDLE_SECONDS, self.timeout_keep_alive_handler)
        begun = state is h11.IDLE and (self.cycle is None or bool(self.conn.trailing_data[0]))
        if self._head is not None and not begun:
            self._head.cancel()
            self._head = None
        elif self._head is None and begun:
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)
