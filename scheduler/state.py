"""All that the scheduler knows, in one place, and the list of actions that a change of it calls for.

Only core.py and the files that it calls with it touch it: membership.py, reports.py, ending.py. dispatch.py changes the
pool and the workers that it is given; audit.py reads.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

from .actions import Action, DropWorker, GatewayMessage, Log, PoolUpdate, ToGateway
from .fleet import Fleet, Pool, Worker
from .fleet_view import FleetView, views_of
from .sequence import Request, Sequence
from .tenants import Tenants
from .traffic import Traffic


@dataclass(slots=True, eq=False)
class MeshState:
    """Fleet, gateways and their live requests, deadlines, counters."""

    fleet: Fleet
    draining: bool = False
    # Live gateway streams, and the live requests of each by key.
    gateways: dict[int, dict[int, Request]] = field(default_factory=dict)
    # Live sequences by id.
    sequences: dict[int, Sequence] = field(default_factory=dict)
    tenants: Tenants = field(default_factory=Tenants)
    traffic: Traffic = field(default_factory=Traffic)
    requests_finished: int = 0
    preemptions: int = 0
    swaps: int = 0
    # Pools about which something changed that a plan may answer.
    dirty: dict[tuple[str, str], Pool] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    _deadlines: list[tuple[float, int, Request]] = field(default_factory=list)

    def view(self) -> FleetView:
        waiting = {sequence.request.key for pool in self.fleet.pools.values() for sequence in pool.waiting}
        running = {
            sequence.request.key for worker in self.fleet.workers.values() for sequence in worker.sequences.values()
        }
        return FleetView(
            requests_waiting=len(waiting),
            requests_running=len(running),
            requests_finished=self.requests_finished,
            preemptions=self.preemptions,
            swaps=self.swaps,
            workers=views_of(self.fleet),
        )

    def add_deadline(self, request: Request) -> None:
        if request.deadline_at is not None:
            heapq.heappush(self._deadlines, (request.deadline_at, request.sequences[0].arrival, request))

    def next_deadline(self) -> float | None:
        while self._deadlines and not self._deadlines[0][2].live:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def take_overdue(self, now: float) -> list[Request]:
        """Live requests whose deadline has come, each once."""
        overdue = []
        while self._deadlines and self._deadlines[0][0] <= now:
            request = heapq.heappop(self._deadlines)[2]
            if request.live:
                overdue.append(request)
        return overdue

    def forget_deadlines(self) -> None:
        """Deadlines far ahead must not keep ended requests in memory."""
        if len(self._deadlines) > 64 + 2 * len(self.sequences):
            self._deadlines = [entry for entry in self._deadlines if entry[2].live]
            heapq.heapify(self._deadlines)

    def touch(self, pool: Pool) -> None:
        self.dirty[pool.model, pool.model_revision] = pool

    def pools_changed(self) -> None:
        """Tells every gateway what can be served now."""
        for gateway in self.gateways:
            self.send(gateway, self.pool_update())

    def pool_update(self) -> PoolUpdate:
        return PoolUpdate(tuple(pool.state for pool in self.fleet.pools.values()), self.fleet.complete)

    def drop(self, worker: Worker, why: str) -> None:
        """Ends the stream of a worker that breaks the contract; its loss will be reported like any other."""
        if not worker.dropped:
            worker.dropped = True
            self.actions.append(DropWorker(worker.link, why))
            self.log("worker_dropped", address=worker.address, why=why)

    def send(self, gateway: int, message: GatewayMessage) -> None:
        """Nothing is said to a gateway that is gone."""
        if gateway in self.gateways:
            self.actions.append(ToGateway(gateway, message))

    def log(self, event: str, **fields: Any) -> None:
        self.actions.append(Log(event, fields))
