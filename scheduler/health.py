"""What a scheduler says of its health: a table from what is seen of it to names, and who looks."""

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
from tercet.tls.mesh import MeshIdentity

from .fleet_view import WorkerView
from .loop import Loop

# Events are handled in milliseconds; who has left some lie for so long has stopped to handle any.
STUCK_SECONDS = 10.0
# A moment in which all workers are late is a matter of a busy machine.
UNMOVED_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class SchedulerFacts:
    """One look at a scheduler. `stuck_s`: for how long no event was handled though there were some. `unmoved_s`: for
    how long every worker that may get something new has been late."""

    stopping: bool
    # Another scheduler has the workers.
    stands_by: bool
    stuck_s: float
    unmoved_s: float
    # All that are configured.
    workers: tuple[WorkerView, ...]
    certificate: str
    # What there was no room for.
    crowded: Reasons


def conditions(facts: SchedulerFacts, service: str) -> Conditions:
    """All names of a scheduler; `service` is that of tercet.mesh.v1, which answers with or without workers."""
    workers, total = facts.workers, len(facts.workers)
    hung = sum(worker.hung for worker in workers)
    away = sum(not worker.live and not worker.hung for worker in workers)
    leaving = sum(worker.draining for worker in workers)
    if facts.stands_by:
        # It is ready to take over. What is wrong with the workers the other one says.
        total, hung, away, leaving = 1, 0, 0, 0
    live = told((facts.stuck_s >= STUCK_SECONDS, f"no event was handled for {facts.stuck_s:.0f} s"))
    stopping = told((facts.stopping, "it stops"))
    unmoved = told((facts.unmoved_s >= UNMOVED_SECONDS, f"no worker has moved for {facts.unmoved_s:.0f} s"))
    return {
        "": live + stopping,
        LIVE: live,
        service: live + stopping,
        READY: live + stopping + told((hung + away + leaving == total, "no worker is there")) + unmoved,
        INTACT: unmoved
        + told(
            (total == 0, "no address of a worker is known"),
            (hung > 0, f"{hung} of {total} workers hung"),
            (away > 0, f"{away} of {total} workers not connected"),
            (leaving > 0, f"{leaving} of {total} workers about to stop"),
            (bool(facts.certificate), facts.certificate),
        ),
        HAS_ROOM: facts.crowded,
    }


class Health(Teller):
    """Looks at a scheduler's process, and tells its `server`. `clock` gives seconds."""

    def __init__(
        self,
        server: rpc.Server,
        service: str,
        loop: Loop,
        identity: MeshIdentity | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        stands_by: Callable[[], bool] = lambda: False,
    ) -> None:
        """`stands_by` says whether another scheduler has the workers."""
        super().__init__(server.tell, asyncio.Event())
        self._server = server
        self._service = service
        self._loop = loop
        self._identity = identity
        self._clock = clock
        self._stands_by = stands_by
        self._handling = self._moving = Stillness()

    def look(self) -> Conditions:
        """All names now."""
        now, loop = self._clock(), self._loop
        workers = loop.view().workers
        usable = [worker for worker in workers if worker.live and not worker.draining]
        all_late = bool(usable) and all(worker.late for worker in usable)
        self._handling = self._handling.after(loop.num_handled, loop.num_unhandled > 0, now)
        self._moving = self._moving.after(0, all_late, now)
        counts = {f"class {name}": count for name, count in loop.refused_for_room.items()}
        facts = SchedulerFacts(
            stopping=self._stopping,
            stands_by=self._stands_by(),
            stuck_s=self._handling.still_s,
            unmoved_s=self._moving.still_s,
            workers=workers,
            certificate="" if self._identity is None else self._identity.problem,
            crowded=self._crowded({"calls": self._server.num_turned_away, **counts}, now),
        )
        return conditions(facts, self._service)
