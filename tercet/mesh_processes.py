"""A whole mesh on this host: gateway, scheduler and workers as child processes that start, live and end together.

Knows the services by name and health alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import grpc.aio

import tercet
from tercet.config import PARENT_PID_VARIABLE, PROCESS_NAME_VARIABLE, is_setting, to_environment
from tercet.errors import StartupError
from tercet.health import Reasons
from tercet.health_client import ask
from tercet.mesh_layout import SERVICES, Member, check_ports, layout, service_of
from tercet.rpc import open_channel
from tercet.sections import MeshConfig
from tercet.telemetry import level_of
from tercet.tls.probe import probe_tls

State = Literal["starting", "ready", "stopping", "stopped", "failed"]

# What must be SERVING. The gateway's says that the whole path down to a worker is there.
_HEALTH_NAMES = {
    "gateway": "tercet.v1.Inference",
    "scheduler": "tercet.mesh.v1.Scheduler",
    "worker": "tercet.mesh.v1.Worker",
}
_POLL_S = 0.1
_PROBE_S = 2.0
_TAIL_BYTES = 8192
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """Where one process stands; `name` is its member's. `seconds` since its start; `detail` is why it failed."""

    name: str
    state: State
    address: str
    pid: int
    seconds: float
    detail: str = ""
    exit_code: int | None = None


class ServiceFailedError(StartupError):
    """A service of the mesh ended by itself, or did not become ready."""

    def __init__(self, status: ServiceStatus) -> None:
        super().__init__(f"{status.name}: {status.detail}")
        self.status = status


class MeshProcesses:
    """The running services of a mesh, as a scope: entering starts them, leaving stops them.

    `on_change` is called with every change of a status. Output of a process goes to ``<name>.log`` in `log_dir`, or to
    standard error if that is None; several workers are named worker-1 and so on, several gateways likewise. A process
    has its own drain time and `stop_margin_s` seconds more to stop. `command` gives the command line for a name. Not
    reusable.
    """

    def __init__(
        self,
        config: MeshConfig,
        *,
        on_change: Callable[[ServiceStatus], None],
        num_workers: int = 1,
        num_gateways: int = 1,
        log_dir: Path | None = None,
        start_timeout_s: float = 600.0,
        stop_margin_s: float = 5.0,
        command: Callable[[str], Sequence[str]] = lambda name: (sys.executable, "-m", "tercet", service_of(name)),
    ) -> None:
        """Raises ConfigError as `layout` does."""
        self._members = {member.name: member for member in layout(config, num_workers, num_gateways)}
        self._on_change = on_change
        self._log_dir = log_dir
        self._start_timeout_s = start_timeout_s
        self._stop_margin_s = stop_margin_s
        self._command = command
        self._started: dict[str, float] = {}
        self._processes: dict[str, Process] = {}
        self._exits: dict[str, asyncio.Task[int]] = {}
        self.stopping = False

    @property
    def address(self) -> str:
        """host:port for clients."""
        return self.members[0].shared_address

    @property
    def members(self) -> tuple[Member, ...]:
        """All processes, in the order in which they stop."""
        return tuple(self._members.values())

    async def __aenter__(self) -> MeshProcesses:
        """Raises ConfigError as `check_ports` does, ServiceFailedError if a process does not become ready."""
        check_ports(self.members)
        try:
            for name in reversed(self._members):
                await self._spawn(name)
            await self._until_ready()
        except BaseException:
            await asyncio.shield(self.stop())
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self.stop())

    async def failure(self) -> ServiceStatus:
        """Waits until the mesh cannot go on, since the scheduler or the last gateway or worker ended; says which and
        why. One that ends while others of its service live is told by `on_change` alone.
        """
        left = dict(self._exits)
        while True:
            await asyncio.wait(left.values(), return_when=asyncio.FIRST_COMPLETED)
            for name in [name for name, task in left.items() if task.done()]:
                del left[name]
                others = [other for other in left if service_of(other) == service_of(name)]
                if not others:
                    return self._report_exit(name)
                self._report_exit(name, f"; {', '.join(others)} left")

    async def stop(self) -> None:
        """Stops what still runs, edge first: SIGTERM, a bounded wait, then SIGKILL. Idempotent."""
        self.stopping = True
        for service in SERVICES:
            await asyncio.gather(*(self._stop(name) for name in self._members if service_of(name) == service))

    async def _stop(self, name: str) -> None:
        process = self._processes.get(name)
        if process is None or self._exits[name].done():
            return
        self._tell(name, "stopping")
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        limit_s = self._members[name].grace_s + self._stop_margin_s
        done, _ = await asyncio.wait({self._exits[name]}, timeout=limit_s)
        if done:
            self._tell(name, "stopped", exit_code=self._exits[name].result())
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await self._exits[name]
        self._tell(name, "stopped", detail=f"killed: it did not stop within {limit_s:g} s")

    def kill(self) -> None:
        """Kills what still runs, without grace."""
        for name, process in self._processes.items():
            if not self._exits[name].done():
                with contextlib.suppress(ProcessLookupError):
                    process.kill()

    async def _spawn(self, name: str) -> None:
        self._started[name] = time.monotonic()
        output = contextlib.nullcontext(sys.stderr.fileno() if self._log_dir is None else -1)
        log = output if self._log_dir is None else self._log_path(name).open("wb")
        with log as stream:
            process = await asyncio.create_subprocess_exec(
                *self._command(name),
                env=_environment(self._members[name], os.environ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                # Ctrl-C in a terminal reaches the whole foreground group; the order of stopping is ours.
                start_new_session=True,
            )
        self._processes[name] = process
        self._exits[name] = asyncio.create_task(process.wait(), name=f"exit-{name}")
        self._tell(name, "starting")

    async def _until_ready(self) -> None:
        heard: dict[str, Reasons] = {}
        probes = {
            asyncio.create_task(_until_serving(member, _HEALTH_NAMES[member.service], heard)): name
            for name, member in self._members.items()
        }
        deadline = time.monotonic() + self._start_timeout_s
        waiting = set(probes)
        try:
            while waiting:
                remaining_s = deadline - time.monotonic()
                everything: set[asyncio.Task[Any]] = {*waiting, *self._exits.values()}
                done, _ = await asyncio.wait(
                    everything, timeout=max(0.0, remaining_s), return_when=asyncio.FIRST_COMPLETED
                )
                for name, task in self._exits.items():
                    if task.done():
                        raise ServiceFailedError(self._report_exit(name))
                if not done:
                    name = min(probes[probe] for probe in waiting)
                    why = "".join(f"; {reason}" for reason in heard.get(name, ()))
                    detail = f"not ready after {self._start_timeout_s:g} s{why}; {self._log_hint(name)}"
                    raise ServiceFailedError(self._tell(name, "failed", detail=detail))
                for probe in waiting & done:
                    probe.result()
                    self._tell(probes[probe], "ready")
                waiting -= done
        finally:
            for probe in probes:
                probe.cancel()

    def _report_exit(self, name: str, note: str = "") -> ServiceStatus:
        code = self._exits[name].result()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        # SIGKILL comes from outside: whatever was said before has nothing to do with it.
        unexplained = self._log_dir is None or code == -signal.SIGKILL
        said = "" if unexplained else last_problem(self._log_path(name))
        # A start-up error is written for people and complete; anything else needs its circumstances.
        detail = said if code == 2 and said else f"{how}{': ' + said if said else ''}; {self._log_hint(name)}"
        return self._tell(name, "failed", detail=detail + note, exit_code=code)

    def _log_hint(self, name: str) -> str:
        return "see its messages above" if self._log_dir is None else f"see {self._log_path(name)}"

    def _log_path(self, name: str) -> Path:
        assert self._log_dir is not None
        return self._log_dir / f"{name}.log"

    def _tell(self, name: str, state: State, *, detail: str = "", exit_code: int | None = None) -> ServiceStatus:
        status = ServiceStatus(
            name=name,
            state=state,
            address=self._members[name].address,
            pid=self._processes[name].pid,
            seconds=time.monotonic() - self._started[name],
            detail=detail,
            exit_code=exit_code,
        )
        self._on_change(status)
        return status


def die_with_parent() -> None:
    """In a child of MeshProcesses on Linux: be killed when the parent is gone, whatever ended it."""
    parent = os.environ.get(PARENT_PID_VARIABLE, "")
    if not parent.isdigit() or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it died before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def last_problem(path: Path) -> str:
    """The last line of a log, without the program's name in front; "" if that is an event which is no error."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = stream.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    text = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return "" if level_of(text) in ("debug", "info", "warning") else text.removeprefix("tercet: ")


def _environment(member: Member, base: Mapping[str, str]) -> dict[str, str]:
    out = {key: value for key, value in base.items() if not is_setting(key)}
    out.update(to_environment(member.config))
    out[PARENT_PID_VARIABLE] = str(os.getpid())
    out[PROCESS_NAME_VARIABLE] = member.name
    # A file named scheduler.py in the user's folder must not be taken for the service; this tree must be found.
    out["PYTHONSAFEPATH"] = "1"
    root = Path(tercet.__file__).resolve().parent.parent
    if root.name not in ("site-packages", "dist-packages"):
        out["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), base.get("PYTHONPATH", "")]))
    return out


async def _until_serving(member: Member, health_name: str, heard: dict[str, Reasons]) -> None:
    """Returns once a member says that `health_name` is serving; `heard` has what it said last. Raises ConfigError for
    certificates of no use."""
    address = member.address
    tls = probe_tls(member.config.tls, member.service)
    host, _, port = address.rpartition(":")
    while True:
        # A plain connection attempt first: gRPC's own back-off would notice the listener up to a second late.
        try:
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except OSError:
            await asyncio.sleep(_POLL_S)
            continue
        writer.close()
        async with open_channel(address, tls) as channel:
            try:
                while True:
                    reasons = (await ask(channel, [health_name], _PROBE_S)).get(health_name)
                    if reasons == ():
                        return
                    heard[member.name] = reasons or ()
                    await asyncio.sleep(_POLL_S)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(_POLL_S)
