"""What a gateway says of its health: a table from what is seen of it to names, and who looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from tercet import rpc
from tercet.errors import SchedulerLostError
from tercet.health import (
    HAS_ROOM,
    INTACT,
    LIVE,
    LOOK_SECONDS,
    READY,
    Conditions,
    Reasons,
    passed_on,
    told,
)
from tercet.health_service import Teller
from tercet.tls.mesh import MeshIdentity

from .books import Books
from .generations import Generations
from .schedulers import Schedulers
from .served_model import Catalogue
from .tenant_watch import TenantWatch

# A scheduler that has left so many questions in a row without an answer does not serve; nor does one that has said so
# as often though its stream says that a worker is there, which it does sooner.
SILENT_LOOKS = 3
_SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True)
class GatewayFacts:
    """One look at a gateway. `scheduler` is what that says of itself, for the names that are passed on."""

    stopping: bool
    attached: bool
    silent: bool
    # Whether a worker is there for any of its models; and why none of them does anything.
    served: bool
    unmoved: Reasons
    tenants_lost: bool
    tenants_stale: bool
    ledger_lost: bool
    ledger_full: bool
    ledger_dead: bool
    certificate: str
    mesh_certificate: str
    # What there was no room for.
    crowded: Reasons
    scheduler: Conditions


def conditions(facts: GatewayFacts, service: str) -> Conditions:
    """All names of a gateway but those that always hold; `service` is that of tercet.v1 which needs the mesh."""
    live = told((facts.ledger_dead, "the thread that writes its ledger has ended"))
    stopping = told((facts.stopping, "it stops"))
    lost = told((not facts.attached, "no scheduler is there"), (facts.silent, "the scheduler does not answer"))
    ready = (
        live
        + stopping
        + lost
        + passed_on(_SCHEDULER, facts.unmoved)
        + told(
            (not lost and not facts.served, "no worker is there for its model"),
            (facts.tenants_stale, "its tenants could not be read for too long"),
            (facts.ledger_full, "too many rows wait to be written to its ledger"),
        )
    )
    own = told(
        (facts.tenants_lost, "its tenants cannot be read"),
        (facts.ledger_lost, "its ledger cannot be written"),
        (bool(facts.certificate), facts.certificate),
        (bool(facts.mesh_certificate), f"towards the mesh {facts.mesh_certificate}"),
    )
    return {
        "": live + stopping,
        LIVE: live,
        READY: ready,
        service: ready,
        INTACT: own + lost + passed_on(_SCHEDULER, facts.scheduler.get(INTACT, ())),
        HAS_ROOM: facts.crowded + passed_on(_SCHEDULER, facts.scheduler.get(HAS_ROOM, ())),
    }


class Health(Teller):
    """Looks at a gateway's process, asks its scheduler, and tells its `server`. `changed` is set when the link has
    changed. `clock` gives seconds."""

    def __init__(
        self,
        server: rpc.Server,
        service: str,
        link: Schedulers,
        catalogue: Catalogue,
        generations: Generations,
        books: Books,
        tenants: TenantWatch | None,
        identity: MeshIdentity | None,
        changed: asyncio.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(server.tell, changed)
        self._server = server
        self._service = service
        self._link = link
        self._catalogue = catalogue
        self._generations = generations
        self._books = books
        self._tenants = tenants
        self._identity = identity
        self._clock = clock
        self._unanswered = self._unready = 0
        self._scheduler: Conditions = {}

    async def ask(self) -> NoReturn:
        """Asks the scheduler, again and again."""
        while True:
            try:
                self._scheduler = await self._link.scheduler_health((READY, INTACT, HAS_ROOM))
                self._unanswered = 0
            except SchedulerLostError:
                # What it said last holds until it counts as silent: one that is full is slow to answer.
                self._unanswered += 1
            else:
                self._unready = self._unready + 1 if self._served and self._scheduler.get(READY) else 0
            await asyncio.sleep(LOOK_SECONDS)

    @property
    def _served(self) -> bool:
        return any(self._link.ready(model.name, model.revision) for model in self._catalogue.models)

    def look(self) -> Conditions:
        """All names now."""
        link, books, tenants = self._link, self._books, self._tenants
        served = self._served
        silent = link.up and self._unanswered >= SILENT_LOOKS
        said = self._scheduler if link.up and not silent else {}
        counts = {"calls": self._server.num_turned_away, "requests": self._generations.num_turned_away}
        facts = GatewayFacts(
            stopping=self._stopping,
            attached=link.up,
            silent=silent,
            served=served,
            unmoved=said.get(READY, ()) if served and self._unready >= SILENT_LOOKS else (),
            tenants_lost=tenants is not None and tenants.lost,
            tenants_stale=tenants is not None and tenants.stale,
            ledger_lost=books.lost,
            ledger_full=books.full,
            ledger_dead=books.dead,
            certificate=self._server.certificate_problem,
            mesh_certificate="" if self._identity is None else self._identity.problem,
            crowded=self._crowded(counts, self._clock()),
            scheduler=said,
        )
        return conditions(facts, self._service)
