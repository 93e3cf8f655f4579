"""A mesh of three real processes with the embedded model, shared by the tests of this folder."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tercet.client import AsyncClient
from tercet.ports import free_ports
from tercet.v1 import operations_pb2, operations_pb2_grpc

ROOT = Path(__file__).resolve().parents[2]
HEALTH_NAMES = {
    "gateway": "tercet.v1.Inference",
    "scheduler": "tercet.mesh.v1.Scheduler",
    "worker": "tercet.mesh.v1.Worker",
}


# What takes a second or two here may take that long on a machine that has twenty times as much to do.
LIMIT_S = 120.0


def free_port() -> int:
    """A port that was free a moment ago."""
    return free_ports(1)[0]


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = LIMIT_S) -> None:
    """Polls until `condition` holds; fails the test with `what` after `timeout_s` seconds."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up:
            pytest.fail(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.05)


class Mesh:
    """Gateway, scheduler and worker as processes on free ports of loopback."""

    def __init__(self, log_folder: Path, settings: dict[str, str] | None = None) -> None:
        self.ports = {name: free_port() for name in HEALTH_NAMES}
        # What runs a service instead of tercet.
        self.modules: dict[str, str] = {}
        self._log_folder = log_folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TERCET_GATEWAY_PORT": str(self.ports["gateway"]),
            "TERCET_GATEWAY_SCHEDULER": f"127.0.0.1:{self.ports['scheduler']}",
            "TERCET_SCHEDULER_PORT": str(self.ports["scheduler"]),
            "TERCET_SCHEDULER_WORKERS": f"127.0.0.1:{self.ports['worker']}",
            "TERCET_WORKER_PORT": str(self.ports["worker"]),
            # 546 blocks: the model's whole context fits, which is what a question without a limit may need.
            "TERCET_WORKER_KV_CACHE_MEMORY": "192MiB",
            # A machine that runs tests may be slower than any promise.
            "TERCET_SCHEDULER_ADMISSION_MODE": "off",
            "TERCET_LOG_FORMAT": "json",
            "TERCET_LEDGER_DATABASE": "none",
            **(settings or {}),
        }

    @property
    def address(self) -> str:
        """host:port of the gateway."""
        return f"127.0.0.1:{self.ports['gateway']}"

    def address_of(self, name: str) -> str:
        """host:port of a service."""
        return f"127.0.0.1:{self.ports[name]}"

    def set(self, **settings: str) -> None:
        """More settings, for services that are started from now on."""
        self._environment.update(settings)

    def start(self, *names: str) -> None:
        """Starts the named services, by default all, and waits until the whole mesh can serve."""
        for name in names or HEALTH_NAMES:
            log = (self._log_folder / f"{name}.log").open("ab")
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", self.modules.get(name, "tercet"), name],
                env=self._environment, stderr=log, stdout=log, cwd=ROOT,
            )  # fmt: skip
        if set(self._processes) == set(HEALTH_NAMES):
            wait_until(lambda: self.healthy("gateway"), f"the mesh serves; logs:\n{self.logs()}")

    def healthy(self, name: str) -> bool:
        """Whether a service says SERVING."""
        return self.health(name, HEALTH_NAMES[name]) == health_pb2.HealthCheckResponse.SERVING

    def health(self, name: str, service: str) -> int | None:
        """The health of a name at a service, None if it does not answer."""
        with grpc.insecure_channel(f"127.0.0.1:{self.ports[name]}") as channel:
            try:
                stub = health_pb2_grpc.HealthStub(channel)
                return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=2).status)
            except grpc.RpcError:
                return None

    def fleet(self) -> operations_pb2.Fleet:
        """The state of the mesh."""
        with grpc.insecure_channel(self.address) as channel:
            return operations_pb2_grpc.OperationsStub(channel).GetFleet(
                operations_pb2.GetFleetRequest(), timeout=LIMIT_S
            )

    def wait_idle(self, timeout_s: float = LIMIT_S) -> None:
        """Waits until no request is left and no block is in use."""

        def idle() -> bool:
            fleet = self.fleet()
            in_use = any(worker.blocks_used or worker.sequences for worker in fleet.workers)
            return fleet.requests_running == fleet.requests_waiting == 0 and not in_use

        wait_until(idle, "no request and no block is left", timeout_s)

    def pid(self, name: str) -> int:
        """Process id of a service."""
        return self._processes[name].pid

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        """Sends a signal to a service and waits for its end; returns the exit status."""
        process = self._processes.pop(name)
        process.send_signal(number)
        return process.wait(LIMIT_S)

    def logs(self) -> str:
        """What all services wrote, the last of it."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-4000:]}" for path in self._log_folder.glob("*.log")
        )

    def records(self, name: str, event: str, **fields: Any) -> list[dict[str, Any]]:
        """The log lines of a service about an event, as far as they have these fields and values."""
        found = []
        for line in (self._log_folder / f"{name}.log").read_text(errors="replace").splitlines():
            # A line may be half written, and libraries write lines of their own.
            with contextlib.suppress(json.JSONDecodeError):
                record = json.loads(line)
                wanted = {"event": event, **fields}.items()
                if isinstance(record, dict) and all(record.get(key) == value for key, value in wanted):
                    found.append(record)
        return found

    def stop(self) -> dict[str, int]:
        """Stops what runs; returns exit statuses."""
        for process in self._processes.values():
            process.terminate()
        statuses = {}
        for name, process in self._processes.items():
            try:
                statuses[name] = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                statuses[name] = process.wait()
        self._processes.clear()
        return statuses


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A mesh that tests share and leave as they found it."""
    running = Mesh(tmp_path_factory.mktemp("mesh"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture
def own_mesh(tmp_path: Path) -> Iterator[Callable[..., Mesh]]:
    """Makes meshes that a test may break."""
    made: list[Mesh] = []

    def make(**settings: str) -> Mesh:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Mesh(folder, settings))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
async def client(mesh: Mesh) -> AsyncIterator[AsyncClient]:
    """A client of the shared mesh."""
    async with AsyncClient(mesh.address) as connected:
        yield connected
