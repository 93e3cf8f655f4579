"""A mesh of real processes for the benches of planning: real workers, or simulated ones whose traces can be read."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.simulated_device import Trace
from tercet.cli.demo import private
from tercet.config import load_config
from tercet.mesh_layout import service_of
from tercet.mesh_processes import MeshProcesses

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Simulated:
    """Steps of simulated workers: `step_ms` each, and `token_us` more for each token."""

    step_ms: float
    token_us: float = 0.0


class PlanMesh:
    """A running mesh; its traces are there once it has stopped."""

    def __init__(self, processes: MeshProcesses, folder: Path) -> None:
        self._processes = processes
        self._folder = folder
        self._pids: dict[str, int] = {}
        self.traces: list[Trace] = []

    @property
    def gateway(self) -> str:
        """host:port."""
        return self._processes.address

    @property
    def scheduler(self) -> str:
        """host:port."""
        return next(member.address for member in self._processes.members if member.name == "scheduler")

    def cpu_seconds(self, name: str) -> float:
        """What a process has had of all cores since its start."""
        fields = Path(f"/proc/{self.pid(name)}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def pid(self, name: str) -> int:
        """Of a process, by its name."""
        return self._pids[name]

    def noted(self, name: str, pid: int) -> None:
        """A process has started."""
        self._pids[name] = pid

    def read_traces(self) -> None:
        """Once the workers have stopped."""
        self.traces = [Trace(**json.loads(path.read_text())) for path in sorted(self._folder.glob("worker*.json"))]


@contextlib.asynccontextmanager
async def plan_mesh(
    flags: dict[str, Any],
    simulated: Simulated | None = None,
    *,
    num_workers: int = 1,
    scheduler_core: int | None = None,
) -> AsyncIterator[PlanMesh]:
    """Starts a mesh with settings, logs going nowhere. `scheduler_core`: that core is the scheduler's alone."""
    loaded = load_config(flags={"ledger.database": "none", **flags})
    config = dataclasses.replace(private(loaded), tenants=loaded.tenants, ledger=loaded.ledger)
    others = sorted(os.sched_getaffinity(0) - {scheduler_core})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def command(member: str) -> list[str]:
            service = service_of(member)
            line = [sys.executable, "-m", "tercet", service]
            if service == "worker" and simulated is not None:
                line = [sys.executable, "-m", "bench.simulated_worker", "--trace", name]
                line += ["--step-ms", str(simulated.step_ms), "--token-us", str(simulated.token_us)]
            if scheduler_core is not None:
                cores = [scheduler_core] if service == "scheduler" else others
                line = ["taskset", "-c", ",".join(map(str, cores)), *line]
            return line

        pids: dict[str, int] = {}
        processes = MeshProcesses(
            config,
            on_change=lambda status: pids.update({status.name: status.pid}),
            num_workers=num_workers,
            log_dir=folder,
            command=command,
        )
        mesh = PlanMesh(processes, folder)
        async with processes:
            for member, pid in pids.items():
                mesh.noted(member, pid)
            yield mesh
        mesh.read_traces()


def fixed(num_steps: int, **settings: Any) -> dict[str, Any]:
    """Flags: plans of so many steps, 0 for as many as seems good, and settings with _ for the first dot."""
    flags = {key.replace("_", ".", 1): value for key, value in settings.items()}
    # Nobody is refused, however slow the machine.
    fixed = {"scheduler.num_scheduler_steps": num_steps, "scheduler.admission_mode": "off", "log.level": "warning"}
    return fixed | flags
