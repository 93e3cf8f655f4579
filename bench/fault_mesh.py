"""A mesh of which every process can be killed, stopped or hung, and every connection is a wire that can break.

One gateway, one scheduler, real workers with a tiny model of random weights: any text depends on its seed and position
alone, and so is the same on each worker. A process that ends is started again at once, as a supervisor would.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import grpc

from bench.dummy_model import write_dummy_model
from bench.fault_database import FaultDatabase, FileDatabase
from bench.wire import Wire, Wires
from bench.workload import Shape
from tercet.config import PARENT_PID_VARIABLE
from tercet.ports import free_ports
from tercet.v1 import operations_pb2, operations_pb2_grpc

ROOT = Path(__file__).resolve().parents[1]
SHAPE = Shape(64, 96, 2, 4, 2, 16, 320, tie_word_embeddings=True)
DRAIN_S = 5.0
STARTED_S = 120.0
# Behind its drain time.
STOPPED_S = 10.0
LOOK_S = 0.05


class FaultMesh:
    """The processes, as a scope; names are gateway, scheduler, worker-1, worker-2."""

    def __init__(
        self,
        folder: Path,
        num_workers: int = 2,
        settings: Mapping[str, str] | None = None,
        make_database: Callable[[Path], FaultDatabase] = FileDatabase,
    ) -> None:
        """Logs go to `folder`. `settings` are variables of the environment."""
        self.folder = folder
        self._make_database = make_database
        self._database: FaultDatabase | None = None
        self.workers = tuple(f"worker-{index + 1}" for index in range(num_workers))
        self.names = ("gateway", "scheduler", *self.workers)
        self._settings = dict(settings or {})
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._wires = Wires()
        self.wires: dict[str, Wire] = {}
        self._ports: dict[str, int] = {}
        # How much of each log has been looked at.
        self._read: dict[str, int] = {}

    def __enter__(self) -> FaultMesh:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._database = self._make_database(self.folder)
        write_dummy_model(SHAPE, self.folder / "model")
        self._wires.__enter__()
        self._ports = dict(zip(self.names, free_ports(len(self.names)), strict=True))
        # Each is in front of the one it is named for.
        self.wires = {name: self._wires.wire(port) for name, port in self._ports.items()}
        try:
            for name in reversed(self.names):
                self.start(name)
            self.wait_for(self.whole, "the mesh serves", STARTED_S)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        self._wires.__exit__(kind, error, trace)
        self.database.close()

    @property
    def database(self) -> FaultDatabase:
        """The ledger's."""
        assert self._database is not None
        return self._database

    @property
    def address(self) -> str:
        """host:port of the gateway, over its wire."""
        return self.wires["gateway"].address

    def pid(self, name: str) -> int:
        """Of the process that has the name now."""
        return self._processes[name].pid

    def start(self, name: str) -> None:
        """Starts a process that is not there; returns before it is ready."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "tercet", name.partition("-")[0]],
                env={**os.environ, **self._environment(name)},
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    def send(self, name: str, number: int) -> None:
        """A signal."""
        self._processes[name].send_signal(number)

    def ended(self, name: str) -> int:
        """Waits for the end of a process that has been told to; returns its exit status. Raises TimeoutError."""
        try:
            return self._processes[name].wait(DRAIN_S + STOPPED_S)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{name} has not stopped {DRAIN_S + STOPPED_S:g} s after SIGTERM") from None

    def stop_worker(self, name: str) -> tuple[int, int]:
        """Tells a worker to stop. Returns its exit status, and how many sequences it still had: if nobody is served,
        those that its scheduler has forgotten. Raises TimeoutError."""
        self.send(name, signal.SIGTERM)
        status = self.ended(name)
        lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
        last = next(line for line in reversed(lines) if '"worker_stopping"' in line)
        return status, int(json.loads(last)["sequences"])

    def dead(self) -> list[str]:
        """Those that have ended by themselves."""
        return [name for name, process in self._processes.items() if process.poll() is not None]

    def fleet(self) -> operations_pb2.Fleet | None:
        """The scheduler's view, None if it cannot be had now."""
        with grpc.insecure_channel(f"127.0.0.1:{self._ports['gateway']}") as channel:
            try:
                stub = operations_pb2_grpc.OperationsStub(channel)
                fleet: operations_pb2.Fleet = stub.GetFleet(operations_pb2.GetFleetRequest(), timeout=2)
                return fleet
            except grpc.RpcError:
                return None

    def whole(self) -> bool:
        """Whether all workers are live."""
        fleet = self.fleet()
        live = () if fleet is None else [worker for worker in fleet.workers if worker.live and not worker.draining]
        return len(live) == len(self.workers)

    def at_rest(self) -> bool:
        """Whether besides nobody has a request, a sequence or a block."""
        fleet = self.fleet()
        if fleet is None or fleet.requests_waiting or fleet.requests_running or fleet.requests_paused:
            return False
        left = [worker for worker in fleet.workers if worker.sequences or worker.blocks_used or worker.swap_blocks_used]
        return not left and self.whole()

    def wait_for(self, condition: Callable[[], bool], what: str, limit_s: float) -> float:
        """Returns after how many seconds it holds. Raises TimeoutError."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > limit_s:
                raise TimeoutError(f"not within {limit_s:g} s: {what}; fleet: {self.fleet()}; ended: {self.dead()}")
            time.sleep(LOOK_S)
        return time.monotonic() - began

    def complaints(self) -> list[str]:
        """What the logs have had to say since the last call that no fault explains."""
        found = []
        for name in self.names:
            path = self.folder / f"{name}.log"
            with path.open("rb") as log:
                log.seek(self._read.get(name, 0))
                data = log.read()
            # The last line may be half written.
            whole = data.rfind(b"\n") + 1
            self._read[name] = self._read.get(name, 0) + whole
            lines = data[:whole].decode("utf-8", "replace").splitlines()
            found += [f"{name}: {line}" for line in lines if _complains(line)]
        return found

    def _environment(self, name: str) -> dict[str, str]:
        workers = ",".join(self.wires[worker].address for worker in self.workers)
        of_gateway = self.database.environment if name == "gateway" else {}
        return {
            PARENT_PID_VARIABLE: str(os.getpid()),
            "PYTHONPATH": str(ROOT),
            "TERCET_LOG_FORMAT": "json",
            "TERCET_MODEL_MODEL": str(self.folder / "model"),
            "TERCET_MODEL_LOAD_FORMAT": "dummy",
            "TERCET_MODEL_MAX_MODEL_LEN": "1024",
            "TERCET_GATEWAY_PORT": str(self._ports["gateway"]),
            "TERCET_GATEWAY_SCHEDULER": self.wires["scheduler"].address,
            "TERCET_GATEWAY_DRAIN_SECONDS": str(DRAIN_S),
            "TERCET_SCHEDULER_PORT": str(self._ports["scheduler"]),
            "TERCET_SCHEDULER_WORKERS": workers,
            "TERCET_SCHEDULER_DRAIN_SECONDS": str(DRAIN_S),
            # A machine that is broken on purpose keeps no promises.
            "TERCET_SCHEDULER_ADMISSION_MODE": "off",
            "TERCET_LEDGER_DATABASE": self.database.where,
            **of_gateway,
            "TERCET_WORKER_PORT": str(self._ports[name] if name in self.workers else 0),
            "TERCET_WORKER_DRAIN_SECONDS": str(DRAIN_S),
            "TERCET_WORKER_DTYPE": "float32",
            "TERCET_WORKER_NUM_THREADS": "1",
            "TERCET_WORKER_KV_CACHE_MEMORY": "12MiB",
            **self._settings,
        }


def _complains(line: str) -> bool:
    """Whether a bug would have written it."""
    return '"level": "error"' in line or '"level": "critical"' in line or line.startswith("Traceback")
