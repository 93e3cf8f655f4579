"""The gateway's HTTP server, in its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from tercet.aio_server import ENDS_A_TURN
from tercet.errors import ConfigError
from tercet.ration import Ration
from tercet.sections import GatewaySettings
from tercet.tls.certificate import Certificate
from tercet.tls.server import ServerTls

from .connection import IDLE_SECONDS, Connection

HEAD_BYTES = 32 * 1024
HANDSHAKE_SECONDS = 10.0
_BACKLOG = 1024


class HttpServer:
    """Listens at once; serves while `run` does. Raises ConfigError naming gateway.http_port.

    A gateway that shares a port with others of its host shares this one, too.
    """

    def __init__(self, application: ASGIApp, settings: GatewaySettings, tls: ServerTls | None) -> None:
        self._stall_s = settings.stream_stall_seconds
        self._ends = Ration(ENDS_A_TURN)
        # Set when it no longer serves; None before it does.
        self._ended: asyncio.Event | None = None
        self._socket = _listen(settings.host, settings.http_port, shares=bool(settings.shared_port))
        self._tls = watched = None if tls is None else _Tls(tls)
        config = uvicorn.Config(
            application,
            http=self._connection,  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=IDLE_SECONDS,
            h11_max_incomplete_event_size=HEAD_BYTES,
            ssl_context_factory=None if watched is None else lambda _config, _default: watched.context,
        )
        self._server = _Server(config)

    @property
    def port(self) -> int:
        """The bound port."""
        return int(self._socket.getsockname()[1])

    async def run(self) -> None:
        """Serves until `stop`; ends by itself only with an error."""
        self._ended = asyncio.Event()
        try:
            await self._server.serve([self._socket])
        finally:
            self._ended.set()

    def leave(self) -> None:
        """Lets in no more connections, ends those that are idle, and others behind their answers."""
        if not self._server.started:
            return
        for server in self._server.servers:
            server.close()
        for connection in list(self._server.server_state.connections):
            connection.shutdown()

    async def stop(self, grace_s: float) -> None:
        """Takes no more connections, and ends those that there are, after `grace_s` seconds whatever they do."""
        if self._ended is None:
            self._socket.close()
            return
        self._server.config.timeout_graceful_shutdown = grace_s  # type: ignore[assignment]
        self._server.should_exit = True
        await self._ended.wait()
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()

    def _connection(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
    ) -> Connection:
        if self._tls is not None:
            self._tls.renew()
        return Connection(config, server_state, app_state, self._stall_s, self._ends)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The gateway has its own."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, but that nobody waits for the rest of a handshake."""
        config, loop = self.config, asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                lambda: config.http_protocol_class(config, self.server_state, {}),  # type: ignore[call-arg]
                sock=listener,
                ssl=config.ssl,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if config.ssl is not None else None,
                backlog=_BACKLOG,
            )
            for listener in sockets or ()
        ]
        self.started = True


class _Tls:
    """A context whose certificate is as new as its files; what is connected stays as it is."""

    def __init__(self, tls: ServerTls) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self._watch = tls.watch
        self._given: Certificate | None = None
        self.renew()

    def renew(self) -> None:
        """Looks whether the files have changed."""
        latest = self._watch.latest()
        if latest is not self._given:
            _load(self.context, latest)
            self._given = latest


def _load(context: ssl.SSLContext, certificate: Certificate) -> None:
    """Python's ssl reads files alone, and those on disk may be others by now: these are in memory."""
    with contextlib.ExitStack() as stack:
        paths = []
        for name, text in (("chain", certificate.chain), ("key", certificate.key)):
            file = stack.enter_context(os.fdopen(os.memfd_create(name), "wb"))
            file.write(text)
            file.flush()
            paths.append(f"/proc/self/fd/{file.fileno()}")
        context.load_cert_chain(*paths)


def _listen(host: str, port: int, *, shares: bool) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(
            address[:2],
            family=family,
            backlog=_BACKLOG,
            reuse_port=shares,
            dualstack_ipv6=family == socket.AF_INET6 and host == "::",
        )
    except OSError as error:
        problem = f"cannot listen on {host}:{port} ({error.strerror or error}); choose another port with --http-port"
        raise ConfigError("gateway.http_port", problem) from error
