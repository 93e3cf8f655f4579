"""The port on which a service tells its metrics. Threads of its own answer; nobody who serves waits for them."""

from __future__ import annotations

import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from tercet.errors import ConfigError
from tercet.own_host import is_own_host
from tercet.public_bind import is_public
from tercet.sections import MetricsSettings

log = structlog.get_logger()

PATH = "/metrics"
# Scrapes at a time; more are closed as they come.
MAX_SCRAPES = 8
# So long one waits for the next byte of a scraper, or for it to read.
QUIET_SECONDS = 5.0


def expose(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """All metrics as text, and its content type: OpenMetrics where the scraper accepts that. For any thread but that of
    an event loop whose metrics they are."""
    encode, kind = choose_encoder(accept)
    return encode(registry), kind


class Exposition:
    """Listens at once, if there is a port; answers from `start` to `stop`. Raises ConfigError naming metrics.port."""

    def __init__(self, settings: MetricsSettings, registry: CollectorRegistry) -> None:
        self._server = _listen(settings.host, settings.port, registry) if settings.port else None
        self._started = False

    def start(self) -> None:
        """Begins to answer."""
        if self._server is not None:
            threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()
            self._started = True

    def stop(self) -> None:
        """Ends at once, in the middle of answers."""
        if self._server is None:
            return
        if self._started:
            self._server.shutdown()
        self._server.server_close()


def _listen(host: str, port: int, registry: CollectorRegistry) -> _Server:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return _Server(family, address[:2], host, registry)
    except OSError as error:
        problem = f"cannot listen on {host}:{port} ({error.strerror or error}); choose another port with --metrics-port"
        raise ConfigError("metrics.port", problem) from error


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Of those that still answer nobody waits for the end.
    block_on_close = False

    def __init__(self, family: socket.AddressFamily, address: Any, host: str, registry: CollectorRegistry) -> None:
        self.address_family = family
        self.registry = registry
        # A page of a browser can reach what listens on loopback, by a name of its own; public addresses have any name.
        self.own_host = None if is_public(str(address[0])) else host
        self._places = threading.BoundedSemaphore(MAX_SCRAPES)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """A connection has come."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """All of a connection, in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that leaves in the middle is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = QUIET_SECONDS
    # One answer a connection: a scraper that is silent holds no thread.
    protocol_version = "HTTP/1.0"
    server_version, sys_version = "tercet", ""

    def do_GET(self) -> None:
        """Metrics, at one path alone."""
        own_host = self.server.own_host
        if own_host is not None and not is_own_host(self.headers.get("host", ""), own_host):
            self._answer(421, b"this answers as localhost, or by its address, alone\n", "text/plain; charset=utf-8")
            return
        if self.path.partition("?")[0] != PATH:
            self._answer(404, b"metrics are at /metrics\n", "text/plain; charset=utf-8")
            return
        try:
            body, kind = expose(self.server.registry, self.headers.get("accept", ""))
        except Exception:
            log.exception("metrics_failed")
            self._answer(500, b"the log says why\n", "text/plain; charset=utf-8")
            return
        self._answer(200, body, kind)

    do_HEAD = do_GET  # noqa: N815 - the name is the base class's

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """In text, as all answers here. What the base class has no method for is one that this does not take."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._answer(
                405, b"metrics are read, by GET or HEAD\n", "text/plain; charset=utf-8", ("allow", "GET, HEAD")
            )
        else:
            self._answer(code, f"{HTTPStatus(code).phrase.lower()}\n".encode(), "text/plain; charset=utf-8")

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody wants a line for each scrape."""

    def _answer(self, status: int, body: bytes, kind: str, *more: tuple[str, str]) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, value in more:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
