"""The health of all processes of a mesh, wherever they run: who there is by the settings, and what each says."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import grpc
import grpc.aio

from tercet.health import NAMES, Reasons
from tercet.health_client import ask
from tercet.mesh_layout import Member
from tercet.rpc import open_channel
from tercet.sections import MeshConfig
from tercet.setting_check import DNS_PREFIX
from tercet.tls.client import ClientTls
from tercet.tls.probe import probe_tls

# Of any service: what one does not have, it does not know.
ALL_NAMES = (
    *NAMES,
    "",
    "tercet.v1.Inference",
    "tercet.v1.Models",
    "tercet.v1.Operations",
    "tercet.mesh.v1.Scheduler",
    "tercet.mesh.v1.Worker",
)


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to ask, and how. `service` is gateway, scheduler or worker."""

    service: str
    address: str
    tls: ClientTls | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What one process says: for each name why it does not hold, if it does not. Or `problem`: why it says nothing."""

    service: str
    address: str
    names: Mapping[str, Reasons]
    problem: str = ""

    def holds(self, names: Iterable[str]) -> bool:
        """Whether it has answered, and all of these hold."""
        return not self.problem and all(self.names.get(name) == () for name in names)


async def find_targets(config: MeshConfig, gateway_tls: ClientTls | None = None) -> list[Target]:
    """Gateway, schedulers and workers of these settings. A name of workers stands for each of its addresses, and for
    itself if it has none. Raises errors.ConfigError for certificates of no use."""
    tls = probe_tls(config.tls, "gateway") if gateway_tls is None else gateway_tls
    scheduler_tls = probe_tls(config.tls, "scheduler")
    targets = [
        Target("gateway", Member("gateway", config).address, tls),
        *(Target("scheduler", address, scheduler_tls) for address in config.gateway.scheduler),
    ]
    worker_tls = probe_tls(config.tls, "worker")
    for place in config.scheduler.workers:
        addresses = await _resolved(place.removeprefix(DNS_PREFIX)) if place.startswith(DNS_PREFIX) else [place]
        targets += [Target("worker", address, worker_tls) for address in addresses]
    return targets


async def look_at(targets: Sequence[Target], timeout_s: float, names: Sequence[str] = ()) -> list[Report]:
    """What each says of these names, or of all it has; all are asked at once, and have so many seconds to answer."""
    return list(await asyncio.gather(*(_look_at(target, timeout_s, names) for target in targets)))


async def _look_at(target: Target, timeout_s: float, names: Sequence[str]) -> Report:
    async with open_channel(target.address, target.tls) as channel:
        try:
            found = await ask(channel, names or ALL_NAMES, timeout_s)
            return Report(target.service, target.address, found, "" if found else "it knows no such name of health")
        except grpc.aio.AioRpcError as error:
            return Report(target.service, target.address, {}, _words(error, timeout_s))


def _words(error: grpc.aio.AioRpcError, timeout_s: float) -> str:
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {timeout_s:g} s"
    unreachable = error.code() is grpc.StatusCode.UNAVAILABLE
    return f"{'no answer' if unreachable else error.code().name}: {error.details()}"


async def _resolved(address: str) -> list[str]:
    host, _, port = address.rpartition(":")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError:
        return [address]
    hosts = sorted({str(entry[4][0]) for entry in found})
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]
