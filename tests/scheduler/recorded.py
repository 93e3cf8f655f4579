"""A core that a recorder listens to, in the place of a core: what the loop does, for who drives a core by hand."""

from __future__ import annotations

import io
from typing import Any

from scheduler.actions import Action
from scheduler.core import Core
from scheduler.events import Event
from scheduler.plan_log.plan_file import PlanFile, read_plan_file
from scheduler.plan_log.recorder import LOOKUP, NotedLookup, Recorder
from scheduler.simulator.mesh import VirtualMesh


class RecordedCore:
    """`tape` is the recorder."""

    def __init__(self, core: Core, max_rounds: int) -> None:
        self._core = core
        lookup = NotedLookup()
        setattr(core, LOOKUP, lookup)
        self.tape = Recorder(core, lookup, max_rounds)
        self._events: list[Event] = []
        self._actions: list[Action] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def apply(self, event: Event, now: float) -> list[Action]:
        actions = self._core.apply(event, now)
        self._events.append(event)
        self._actions += actions
        return actions

    def plan(self, now: float) -> list[Action]:
        actions = self._core.plan(now)
        self.tape.note(now, self._events, self._actions + actions)
        self._events, self._actions = [], []
        return actions


def record(mesh: VirtualMesh, max_rounds: int = 1_000_000) -> Recorder:
    """Records what the mesh does from now on."""
    core = RecordedCore(mesh.core, max_rounds)
    mesh.core = core  # type: ignore[assignment]
    return core.tape


def dumped(tape: Recorder, now: float = 0.0) -> bytes:
    """The file as it is now."""
    return b"".join(tape.dump(now, written_at=1_800_000_000.0))


def reread(data: bytes) -> PlanFile:
    """The file as a replay takes it."""
    return read_plan_file(io.BytesIO(data))
