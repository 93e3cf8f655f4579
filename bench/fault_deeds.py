"""What can be done to a process of a mesh, or to its connections. Each returns when it is over; nobody waits until the
mesh is whole again.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import time
from collections.abc import Awaitable, Callable, Mapping

from bench.fault_database import FaultDatabase
from bench.fault_mesh import FaultMesh

# Shorter than what anybody would take for a loss.
PAUSE_S = 1.5
# Longer than QUIET_SECONDS and ANSWER_SECONDS of tercet/rpc.py together.
LONG_PAUSE_S = 45.0
# How long a database is broken.
BROKEN_S = 3.0

FAULTS = ("kill", "hang", "stop", "cut")
# Those that keepalive has to find out.
LONG_FAULTS = ("long hang", "long stall", "half-open")
# By kind of database, what can be done to it.
DATABASE_FAULTS = {"sqlite": ("lock", "slow disk"), "postgresql": ("kill", "stop", "hang")}


async def do(mesh: FaultMesh, name: str, fault: str) -> None:
    """`name` is a process, or the kind of the mesh's database."""
    if name == mesh.database.kind:
        await asyncio.to_thread(_break, mesh.database, fault)
    else:
        await _DEEDS[fault](mesh, name)


def _break(database: FaultDatabase, fault: str) -> None:
    with database.broken(fault):
        time.sleep(BROKEN_S)


async def kill(mesh: FaultMesh, name: str, mend: Callable[[], None] = lambda: None) -> None:
    """`mend` is called between its end and its start."""
    mesh.send(name, signal.SIGKILL)
    await asyncio.to_thread(mesh.ended, name)
    await asyncio.to_thread(mend)
    mesh.start(name)


async def _stop(mesh: FaultMesh, name: str) -> None:
    mesh.send(name, signal.SIGTERM)
    status = await asyncio.to_thread(mesh.ended, name)
    mesh.start(name)
    assert status == 0, f"{name} ended with {status} on SIGTERM"


async def _hang(mesh: FaultMesh, name: str, *, pause_s: float) -> None:
    mesh.send(name, signal.SIGSTOP)
    await asyncio.sleep(pause_s)
    mesh.send(name, signal.SIGCONT)


async def _cut(mesh: FaultMesh, name: str) -> None:
    mesh.wires[name].cut()


async def _half_open(mesh: FaultMesh, name: str) -> None:
    mesh.wires[name].cut_below()


async def _stall(mesh: FaultMesh, name: str, *, pause_s: float) -> None:
    mesh.wires[name].stall()
    await asyncio.sleep(pause_s)
    mesh.wires[name].flow()


_DEEDS: Mapping[str, Callable[[FaultMesh, str], Awaitable[None]]] = {
    "kill": kill,
    "stop": _stop,
    "hang": functools.partial(_hang, pause_s=PAUSE_S),
    "cut": _cut,
    "long hang": functools.partial(_hang, pause_s=LONG_PAUSE_S),
    "long stall": functools.partial(_stall, pause_s=LONG_PAUSE_S),
    "half-open": _half_open,
}
