"""What a worker says of its health: a table from what is seen of it to names, and who looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from tercet import rpc
from tercet.health import (
    HAS_ROOM,
    INTACT,
    LIVE,
    READY,
    Conditions,
    Reasons,
    Stillness,
    told,
)
from tercet.health_service import Teller

from .executor import Executor

# A worker is not ready after so large a part of the time after which it is not live.
LATE_PART = 0.1


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One look at a worker. `still_s`: for how long its device has computed a step that has not ended."""

    loading: bool
    # No scheduler has ever attached.
    unknown: bool
    stopping: bool
    dead: bool
    still_s: float
    # worker.hung_seconds.
    hung_s: float
    # A GPU computes with PyTorch alone.
    without_kernels: bool
    certificate: str
    # What there was no room for.
    crowded: Reasons


def conditions(facts: WorkerFacts, service: str) -> Conditions:
    """All names of a worker; `service` is that of tercet.mesh.v1."""
    still = f"its device has been at one step for {facts.still_s:.0f} s"
    live = told((facts.dead, "its device's thread has ended"), (facts.still_s >= facts.hung_s, still))
    late = not live and facts.still_s >= LATE_PART * facts.hung_s
    ready = told(
        (facts.loading, "it loads the model"),
        # What restarts one worker after the other waits for this. A scheduler that is gone again is not its matter.
        (facts.unknown and not facts.loading, "no scheduler has found it yet"),
        (facts.stopping, "it stops"),
        (late, still),
    )
    return {
        "": live,
        LIVE: live,
        READY: live + ready,
        service: live + ready,
        INTACT: told(
            (facts.without_kernels, "its GPU has no kernels of its own"),
            (bool(facts.certificate), facts.certificate),
        ),
        HAS_ROOM: facts.crowded,
    }


class Health(Teller):
    """Looks at a worker's process, and tells its `server`. Until `loaded` it loads. `found` says whether a scheduler
    has ever attached; `clock` gives seconds."""

    def __init__(
        self,
        server: rpc.Server,
        service: str,
        hung_s: float,
        found: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(server.tell, asyncio.Event())
        self._server = server
        self._service = service
        self._hung_s = hung_s
        self._found = found
        self._clock = clock
        self._executor: Executor | None = None
        self._without_kernels = False
        self._stillness = Stillness()

    def loaded(self, executor: Executor, *, without_kernels: bool) -> None:
        """The executor has started."""
        self._executor, self._without_kernels = executor, without_kernels
        self._tell(self.look())

    @property
    def still_s(self) -> float:
        """For how long the device has been at one step, as of the last look."""
        return self._stillness.still_s

    def look(self) -> Conditions:
        """All names now."""
        now, executor = self._clock(), self._executor
        if executor is not None:
            self._stillness = self._stillness.after(executor.num_turns, executor.busy, now)
        facts = WorkerFacts(
            loading=executor is None,
            unknown=not self._found(),
            stopping=self._stopping,
            dead=executor is not None and not executor.alive,
            still_s=self._stillness.still_s,
            hung_s=self._hung_s,
            without_kernels=self._without_kernels,
            certificate=self._server.certificate_problem,
            crowded=self._crowded({"calls": self._server.num_turned_away}, now),
        )
        return conditions(facts, self._service)
