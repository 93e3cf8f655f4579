"""Which processes a mesh on this host has, and the settings of each: ports, addresses, shares of cores and memory.

Starts nothing.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tercet.config import raise_all
from tercet.errors import ConfigError
from tercet.ports import MAX_PORT, check_port_free, free_ports
from tercet.sections import MeshConfig, WorkerSettings

# In the order in which they stop: the edge first, so that nothing new comes in; the device last.
SERVICES = ("gateway", "scheduler", "worker")


@dataclass(frozen=True, slots=True)
class Member:
    """One process. `name` is its service's, with a number behind it where there are several: worker-2."""

    name: str
    config: MeshConfig

    @property
    def service(self) -> str:
        """gateway, scheduler or worker."""
        return service_of(self.name)

    @property
    def settings(self) -> Any:
        """Its own section."""
        return getattr(self.config, self.service)

    @property
    def grace_s(self) -> float:
        """For how many seconds it may go on when it is told to stop."""
        moving_s = self.config.gateway.handover_seconds if self.service == "gateway" else 0.0
        return float(moving_s + self.settings.drain_seconds)

    @property
    def address(self) -> str:
        """host:port of this very process for those on this host."""
        return self._at(self.settings.port)

    @property
    def shared_address(self) -> str:
        """host:port of a gateway for clients: whichever of those that share a port."""
        return self._at(self.config.gateway.shared_port or self.config.gateway.port)

    @property
    def http_url(self) -> str:
        """Where clients of a gateway find OpenAI's HTTP API; empty if it has none."""
        return self._http("/v1")

    @property
    def console_url(self) -> str:
        """Where a browser finds the console of a gateway; empty if it has none."""
        return self._http("/") if self.config.gateway.web else ""

    @property
    def metrics_url(self) -> str:
        """Where Prometheus finds its metrics; empty if it tells none."""
        metrics = self.config.metrics
        return f"http://{_bracketed(metrics.host)}:{metrics.port}/metrics" if metrics.port else ""

    def _http(self, path: str) -> str:
        settings = self.config.gateway
        scheme = "https" if self.config.tls.certificate else "http"
        return f"{scheme}://{self._at(settings.http_port)}{path}" if settings.http_port else ""

    def _at(self, port: int) -> str:
        return f"{_bracketed(self.settings.host)}:{port}"


def _bracketed(host: str) -> str:
    """Where those on this host find who listens on `host`, as addresses have it."""
    # A service that listens everywhere is found on loopback.
    found = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"[{found}]" if ":" in found and not found.startswith("[") else found


def service_of(name: str) -> str:
    """The service of a member's name."""
    return name.partition("-")[0]


def stop_order(name: str) -> tuple[int, int]:
    """Sorts names of members as SERVICES has them, those of one service by their number."""
    service, _, number = name.partition("-")
    return SERVICES.index(service), int(number or 0)


def layout(config: MeshConfig, num_workers: int = 1, num_gateways: int = 1) -> tuple[Member, ...]:
    """The members, in the order of SERVICES, with free ports where 0 stands and the addresses by which they meet.

    Several workers take the ports from worker.port on, and divide the host among them. Several gateways share
    gateway.port; each has a free one of its own besides. Raises ConfigError if there are not so many ports.
    """
    last = config.worker.port + num_workers - 1
    if config.worker.port and last > MAX_PORT:
        raise ConfigError("worker.port", f"is {config.worker.port}: {num_workers} workers need the ports up to {last}")
    ports = free_ports(num_workers + num_gateways + 2)
    workers = [
        dataclasses.replace(
            _share(config.worker, index, num_workers),
            port=config.worker.port + index if config.worker.port else ports.pop(),
        )
        for index in range(num_workers)
    ]
    config = dataclasses.replace(
        config,
        gateway=dataclasses.replace(config.gateway, port=config.gateway.port or ports.pop()),
        scheduler=dataclasses.replace(config.scheduler, port=config.scheduler.port or ports.pop()),
    )
    devices = [
        Member(name, dataclasses.replace(config, worker=worker))
        for name, worker in zip(_names("worker", num_workers), workers, strict=True)
    ]
    scheduler = dataclasses.replace(config.scheduler, workers=tuple(member.address for member in devices), peers=())
    gateway = dataclasses.replace(config.gateway, scheduler=(Member("scheduler", config).address,))
    edge = [gateway] * num_gateways
    if num_gateways > 1:
        edge = [dataclasses.replace(gateway, port=ports.pop(), shared_port=gateway.port) for _ in edge]
    settled = dataclasses.replace(config, gateway=edge[0], scheduler=scheduler)
    members = (
        *(
            Member(name, dataclasses.replace(settled, gateway=each))
            for name, each in zip(_names("gateway", num_gateways), edge, strict=True)
        ),
        Member("scheduler", settled),
        *(Member(member.name, dataclasses.replace(settled, worker=member.config.worker)) for member in devices),
    )
    return _with_metrics(members, config.metrics.port)


def _with_metrics(members: tuple[Member, ...], port: int) -> tuple[Member, ...]:
    """The members with the ports of their metrics, from `port` on in their order; 0: none. Raises ConfigError."""
    if not port:
        return members
    last = port + len(members) - 1
    if last > MAX_PORT:
        raise ConfigError("metrics.port", f"is {port}: {len(members)} services need the ports up to {last}")
    return tuple(
        dataclasses.replace(
            member, config=dataclasses.replace(member.config, metrics=dataclasses.replace(metrics, port=each))
        )
        for each, member in enumerate(members, port)
        for metrics in (member.config.metrics,)
    )


def _names(service: str, count: int) -> list[str]:
    return [f"{service}-{index + 1}" for index in range(count)] if count > 1 else [service]


def check_ports(members: Sequence[Member]) -> None:
    """Raises ConfigError, or ConfigErrors, if they cannot listen on their ports of this host."""
    problems: list[ConfigError] = []
    for member in members:
        try:
            settings, flag = member.settings, f"--{member.service}-port"
            check_port_free(f"{member.service}.port", settings.host, settings.port, flag=flag)
            if (metrics := member.config.metrics).port:
                check_port_free("metrics.port", metrics.host, metrics.port, flag="--metrics-port")
            if member.name == members[0].name:
                # All gateways have these.
                if settings.shared_port:
                    check_port_free("gateway.port", settings.host, settings.shared_port, flag=flag)
                if settings.http_port:
                    check_port_free("gateway.http_port", settings.host, settings.http_port, flag="--http-port")
        except ConfigError as error:
            problems.append(error)
    for index, member in enumerate(members):
        for other in members[:index]:
            one, two = member.settings, other.settings
            everywhere = bool({one.host, two.host} & {"0.0.0.0", "::"})
            taken = {two.port: "port"}
            if other.service == "gateway":
                taken = {two.http_port: "http_port", two.shared_port: "port"} | taken
            if one.port in taken and (everywhere or one.host == two.host):
                whose = "" if member.name == member.service else f" for {member.name}"
                theirs = f"{other.service}.{taken[one.port]}"
                problems.append(ConfigError(f"{member.service}.port", f"is {one.port}{whose}, which is {theirs} too"))
    edge = members[0].settings
    if edge.http_port and edge.http_port in (edge.port, edge.shared_port):
        problems.append(ConfigError("gateway.http_port", f"is {edge.http_port}, which is gateway.port too"))
    problems += _metrics_problems(members)
    raise_all(problems)


def _metrics_problems(members: Sequence[Member]) -> list[ConfigError]:
    """Ports of metrics on which somebody serves, whatever their hosts: they are many, and easily moved."""
    served = {member.settings.port: f"{member.service}.port" for member in members}
    edge = members[0].settings
    served |= {edge.http_port: "gateway.http_port", edge.shared_port: "gateway.port"}
    told = [(member.config.metrics.port, member.name) for member in members if member.config.metrics.port]
    return [
        ConfigError("metrics.port", f"gives {name} the port {port}, which is {served[port]}")
        for port, name in told
        if port in served
    ]


def _share(settings: WorkerSettings, index: int, num_workers: int) -> WorkerSettings:
    """What is left to each of several workers: a GPU of its own where the device says no number, else a part."""
    if num_workers == 1:
        return settings
    if settings.device == "cuda":
        return dataclasses.replace(settings, device=f"cuda:{index}")
    if settings.device.startswith("cuda"):
        part = settings.gpu_memory_utilization / num_workers
        return dataclasses.replace(settings, gpu_memory_utilization=part)
    num_threads = settings.num_threads
    if num_threads == 0:
        cores = num_cores()
        # Two workers that compute on the same cores are slower than one after the other.
        num_threads = max(1, cores // num_workers + (index < cores % num_workers))
    # All look at the free memory before any has taken its part.
    fraction = settings.memory_fraction / num_workers
    return dataclasses.replace(settings, num_threads=num_threads, memory_fraction=fraction)


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
