"""All that the scheduler knows, in one place, and the list of actions that a change of it calls for.

Only core.py and the files that it calls with it touch it: intake.py, membership.py, reports.py, pausing.py, ending.py,
overdue.py, planning.py. dispatch.py changes the pool and the workers that it is given; audit.py reads.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .actions import Action, DropWorker, GatewayMessage, Log, PoolUpdate, ToGateway
from .alarms import Alarms
from .fair_order import due_at
from .fleet import Fleet
from .fleet_view import FleetView, views_of
from .foresight import Foresight
from .lifecycle import State
from .pool import Pool
from .sequence import Request, Sequence
from .start_pace import StartPace
from .tenants import Tenants
from .traffic import Traffic
from .worker import Worker


@dataclass(slots=True, eq=False)
class MeshState:
    """Fleet, gateways and their live requests, tenants, alarms, counters."""

    fleet: Fleet
    draining: bool = False
    # Live gateway streams, and the live requests of each by key.
    gateways: dict[int, dict[int, Request]] = field(default_factory=dict)
    # Live sequences by id.
    sequences: dict[int, Sequence] = field(default_factory=dict)
    # Of the next sequence.
    next_id: int = 1
    tenants: Tenants = field(default_factory=Tenants)
    traffic: Traffic = field(default_factory=Traffic)
    requests_finished: int = 0
    preemptions: int = 0
    swaps: int = 0
    # Pools about which something changed that a plan may answer.
    dirty: dict[tuple[str, str], Pool] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    deadlines: Alarms = field(default_factory=Alarms)
    # When somebody looked last whether the workers move, in seconds on the scheduler's clock.
    looked_at: float = 0.0
    # When requests that have not started have waited for as long as their class lets them.
    ages: Alarms = field(default_factory=Alarms)
    # When somebody may have to make room for those that wait.
    promises: Alarms = field(default_factory=Alarms)
    # By pool and class; that of a whole pool has no class.
    paces: dict[tuple[str, str, str], StartPace] = field(default_factory=dict)
    # By pool.
    foresights: dict[tuple[str, str], Foresight] = field(default_factory=dict)

    def view(self) -> FleetView:
        there = [each for worker in self.fleet.workers.values() for each in worker.sequences.values()]
        running = {each.request.key for each in there if each.state is not State.PAUSED}
        paused = {each.request.key for each in there if each.state is State.PAUSED}
        paused.update(each.request.key for pool in self.fleet.pools.values() for each in pool.paused.values())
        return FleetView(
            requests_waiting=sum(pool.waiting.num_requests for pool in self.fleet.pools.values()),
            requests_running=len(running),
            requests_paused=len(paused),
            requests_finished=self.requests_finished,
            preemptions=self.preemptions,
            swaps=self.swaps,
            workers=views_of(self.fleet),
        )

    def pool_for(self, request: Request) -> Pool:
        """Where it waits and runs."""
        return self.fleet.pools[request.submission.model, request.submission.model_revision]

    def foresight(self, pool: Pool) -> Foresight:
        """What is known of when the pool's newcomers get their first tokens."""
        key = pool.model, pool.model_revision
        if key not in self.foresights:
            # Those of pools that are no more are of no use.
            self.foresights = {each: kept for each, kept in self.foresights.items() if each in self.fleet.pools}
            self.foresights[key] = Foresight()
        return self.foresights[key]

    def pace(self, pool: Pool, traffic_class: str = "") -> StartPace:
        """How fast the queue of a class, or of all, moves; to be looked at only."""
        return self.paces.get((pool.model, pool.model_revision, traffic_class)) or StartPace()

    def note_starts(self, pool: Pool, started: list[str], now: float) -> None:
        """Sequences of these classes, one at least, have gone to workers."""
        self._kept_pace(pool).note(len(started), len(pool.waiting) > 0, now)
        for name, count in Counter(started).items():
            self._kept_pace(pool, name).note(count, pool.waiting.count(name).requests > 0, now)

    def note_waits(self, pool: Pool, traffic_class: str, now: float) -> None:
        """A sequence of that class has begun to wait."""
        if len(pool.waiting) == 1:
            self._kept_pace(pool).note_first(now)
        if pool.waiting.count(traffic_class).requests == 1:
            self._kept_pace(pool, traffic_class).note_first(now)

    def spread(self, pool: Pool, traffic_class: str, soonest_s: float, now: float) -> float:
        """In how many seconds one of that class who is refused may come again, when others have been told the same."""
        return self._kept_pace(pool, traffic_class).retry_after(soonest_s, now)

    def _kept_pace(self, pool: Pool, traffic_class: str = "") -> StartPace:
        key = pool.model, pool.model_revision
        if (*key, "") not in self.paces:
            # Those of pools that are no more are of no use.
            self.paces = {each: pace for each, pace in self.paces.items() if each[:2] in self.fleet.pools}
            self.paces[(*key, "")] = StartPace()
        return self.paces.setdefault((*key, traffic_class), StartPace())

    def set_alarms(self, request: Request) -> None:
        """For a request that was just accepted."""
        if request.deadline_at is not None:
            self.deadlines.add(request.deadline_at, request)
        if request.traffic_class.max_queue_s:
            self.ages.add(request.arrived_at + request.traffic_class.max_queue_s, request)
        if request.traffic_class.ttft is not None:
            self.promises.add(due_at(request), request)

    def next_alarm(self) -> float | None:
        """The next moment at which time may end a request, or make a promise urgent."""
        moments = (self.deadlines.next(_live), self.ages.next(_never_started), self.promises.next(_never_started))
        return min((moment for moment in moments if moment is not None), default=None)

    def take_overdue(self, now: float) -> list[Request]:
        """Live requests whose deadline has come, each once."""
        return self.deadlines.take_due(_live, now)

    def take_expired(self, now: float) -> list[Request]:
        """Requests that have waited for too long, each once."""
        return self.ages.take_due(_never_started, now)

    def touch_pressing(self, now: float) -> None:
        """Pools in which a request waits whose promise is at stake by now."""
        for request in self.promises.take_due(_never_started, now):
            self.touch(self.pool_for(request))

    def forget_alarms(self) -> None:
        """Of requests that have ended."""
        most = 64 + 2 * len(self.sequences)
        self.deadlines.forget(_live, most)
        self.ages.forget(_never_started, most)
        self.promises.forget(_never_started, most)

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


def _live(request: Request) -> bool:
    return request.live


def _never_started(request: Request) -> bool:
    """Whether nothing of it has been on a worker: what was keeps what it has got, and is let alone."""
    return request.live and not any(sequence.placements for sequence in request.sequences)
