"""gRPC as every service uses it: options, servers with health and reflection, typed errors on the wire."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

import grpc
import grpc.aio
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tercet import errors
from tercet.aio_server import make_server
from tercet.call_status import abort as abort
from tercet.call_status import typed_error as typed_error
from tercet.door import MAX_CALLS, STALL_SECONDS, Admit, Door, anyone
from tercet.health import NAMES, READY, Conditions
from tercet.health_service import HealthService
from tercet.listeners import num_connected, stop_listening
from tercet.open_files import max_connections
from tercet.ports import check_port_free

if TYPE_CHECKING:
    from tercet.tls.client import ClientTls
    from tercet.tls.server import ServerTls

# Between services; what clients send is bounded by validation, with a typed error, and this only has to lie above it.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

# A peer that hangs, or that the network has lost, is noticed when it has said nothing for so long and then does not
# answer for so long. A process that stands still for less, as on a machine that swaps, loses nothing.
QUIET_SECONDS = 20.0
ANSWER_SECONDS = 20.0
# How often a server looks whether it still runs.
LOOK_SECONDS = 1.0
# By how much the core draws out the age at which it ends a connection, at most.
LATEST_AGE = 1.1
# How often a server that is left looks whether somebody is still there, and how long a client takes to hear of it.
LEFT_LOOK_SECONDS = 0.5
HEARD_SECONDS = 0.5


def keepalive(quiet_s: float, answer_s: float) -> list[tuple[str, int]]:
    """Options of either end of a connection with which it notices that the other end is gone."""
    answer_ms = round(answer_s * 1e3)
    return [
        ("grpc.keepalive_time_ms", round(quiet_s * 1e3)),
        ("grpc.keepalive_timeout_ms", answer_ms),
        # gRPC pings on its own account, too, to measure the bandwidth: while one of those is on its way there is no
        # other, and it has a minute.
        ("grpc.http2.ping_timeout_ms", answer_ms),
        ("grpc.http2.max_pings_without_data", 0),
    ]


_COMMON_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    *keepalive(QUIET_SECONDS, ANSWER_SECONDS),
]

SERVER_OPTIONS: list[tuple[str, int]] = [
    *_COMMON_OPTIONS,
    # A second server on the same port must fail, not share it.
    ("grpc.so_reuseport", 0),
    # By default the core drops calls at random where more than 1,000 wait for their handlers; admission refuses with a
    # reason instead. It does so where there are more than would be let in.
    ("grpc.server.max_pending_requests", MAX_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", MAX_CALLS),
    # Above what a gateway lets run, so that a burst meets admission and not this. Without any bound the core does not
    # slow down a client that opens and resets streams without end.
    ("grpc.max_concurrent_streams", MAX_CALLS // 2),
    # A long prefill sends nothing; clients that ping every 10 s must survive it. Pings arrive closer to each other than
    # they were sent, too, and the third that is too early ends the connection: half leaves room.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Nobody waits for the rest of a handshake, or of the greeting behind it.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # A connection without calls ends, whatever is half sent on it; a client opens another without anybody noticing.
    ("grpc.max_connection_idle_ms", 120_000),
]

CHANNEL_OPTIONS: list[tuple[str, int]] = [
    *_COMMON_OPTIONS,
    # The default back-off grows to two minutes; a restarted peer should be found within a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A connection for each channel: gateways that share a port share clients by their connections.
    ("grpc.use_local_subchannel_pool", 1),
]


def server_options(
    max_request_bytes: int = MAX_MESSAGE_BYTES, *, shares: bool = False, renew_s: float = 0.0
) -> list[tuple[str, int]]:
    """Options of a server in this process. A larger request is refused with RESOURCE_EXHAUSTED by gRPC itself.
    `shares`: it may have a `shared_port`. `renew_s`: no connection gets new calls for longer; 0: each may for ever."""
    # Of two options of one name the first counts. Beyond the second one, connections are closed as they come.
    return [
        *([("grpc.so_reuseport", 1)] if shares else []),
        # The core asks for it up to a tenth later. Clients open another connection, and the calls on this one end as
        # they would.
        *([("grpc.max_connection_age_ms", max(1, round(renew_s * 1e3 / LATEST_AGE)))] if renew_s else []),
        ("grpc.max_receive_message_length", max_request_bytes),
        ("grpc.max_allowed_incoming_connections", max_connections()),
        *SERVER_OPTIONS,
    ]


def open_channel(address: str, tls: ClientTls | None = None) -> grpc.aio.Channel:
    """A channel to ``host:port``, in plain text without `tls`. It connects lazily and by itself."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(address, tls.credentials(), options=[*CHANNEL_OPTIONS, *tls.options()])


class Server:
    """A gRPC server with health and reflection. Services are added to `grpc_server`, then `start` binds.

    `options` None are those of `server_options`. Without `tls` it speaks plain text. `admit` raises errors.RequestError
    for callers who may not come in; without it `tls` says who may. `stall_s` is how many seconds an answer in one piece
    waits for its client to read it. Health names are "" (the process), those of
    tercet.health and every full service name passed to `start`; all are SERVING after `start` unless `tell` or
    `set_serving` says otherwise.
    """

    def __init__(
        self,
        options: list[tuple[str, int]] | None = None,
        *,
        tls: ServerTls | None = None,
        admit: Admit | None = None,
        stall_s: float = STALL_SECONDS,
    ) -> None:
        self._tls = tls
        self._ports: set[int] = set()
        self._door = Door(admit or (anyone if tls is None else tls.admit), stall_s=stall_s)
        self.grpc_server = make_server(options or server_options(), [self._door])
        self._health = HealthService()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc_server)

    async def start(
        self,
        host: str,
        port: int,
        files: Iterable[FileDescriptor],
        *,
        key: str,
        serving: bool = True,
        shared_port: int = 0,
    ) -> int:
        """Binds ``host:port`` (0 picks a free port), registers reflection for the services in `files`, serves.

        With `serving` False the services are not, and nothing is `ready`, until more is said. `shared_port` is bound as
        well, together with other servers of this host: the kernel gives each connection to one of them. Returns the
        bound port. Raises errors.ConfigError naming `key` if a port cannot be bound.
        """
        names = [service.full_name for file in files for service in file.services_by_name.values()]
        health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        reflection.enable_server_reflection([*names, health_name, reflection.SERVICE_NAME], self.grpc_server)
        if port:
            # Before the core tries, which would write its own account of a failure to standard error.
            check_port_free(key, host, port)
        bound = self._bind(host, port, key)
        if shared_port:
            self._bind(host, shared_port, key)
        starting = () if serving else ("it starts",)
        self.tell(dict.fromkeys(("", *NAMES), ()) | dict.fromkeys((READY, *names), starting))
        await self.grpc_server.start()
        return bound

    def _bind(self, host: str, port: int, key: str) -> int:
        address = f"{_bracket(host)}:{port}"
        try:
            if self._tls is None:
                bound = int(self.grpc_server.add_insecure_port(address))
            else:
                bound = int(self.grpc_server.add_secure_port(address, self._tls.credentials()))
        except RuntimeError as error:
            raise errors.ConfigError(
                key, f"cannot listen on {host}:{port}: the port is in use or the address is not this host's"
            ) from error
        self._ports.add(bound)
        return bound

    def tell(self, conditions: Conditions) -> None:
        """Publishes what holds of these health names. Nothing after `stop`."""
        self._health.tell(conditions)

    def set_serving(self, name: str, serving: bool) -> None:
        """Publishes the health of one name."""
        self.tell({name: () if serving else ("it does not serve",)})

    @property
    def num_turned_away(self) -> int:
        """Calls so far for which there was no room."""
        return self._door.num_turned_away

    @property
    def certificate_problem(self) -> str:
        """What is wrong with the certificate that it shows, if anything."""
        return "" if self._tls is None else self._tls.watch.problem

    async def crash(self) -> NoReturn:
        """Waits until the server has ended; raises EngineFaultError. If nobody has stopped it that is a bug of gRPC,
        which would leave a process that nobody can reach."""
        while self.grpc_server._server.is_running():  # noqa: ASYNC110 - it has no other way to tell
            await asyncio.sleep(LOOK_SECONDS)
        raise errors.EngineFaultError("the gRPC server ended by itself")

    async def leave(self, limit_s: float) -> None:
        """Lets in no more connections, and serves those there are until all have ended, `limit_s` seconds at most.
        Who is connected hears of it where `server_options` has `renew_s`, and goes elsewhere."""
        stop_listening(self._ports)
        give_up = time.monotonic() + limit_s + HEARD_SECONDS
        # Reading what files are open takes a while where there are thousands.
        while time.monotonic() < give_up:
            if not await asyncio.to_thread(num_connected, self._ports):
                break
            await asyncio.sleep(LEFT_LOOK_SECONDS)

    async def stop(self, grace_s: float) -> None:
        """Says NOT_SERVING of all but `live`, refuses new calls, cancels running ones after `grace_s` seconds."""
        self._health.end()
        await self.grpc_server.stop(grace_s)


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
