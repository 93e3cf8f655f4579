"""What classes and tenants ask for and get, as operators see it at one moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from operator import attrgetter

from .events import CancelReason
from .foresight import ForecastView
from .histogram import Histogram
from .sequence import Request
from .state import MeshState
from .traffic import Counts, Service
from .traffic_class import TrafficClass
from .waiting import Line

_ARRIVED_AT = attrgetter("request.arrived_at")


@dataclass(slots=True)
class Load:
    """What is there now of one tenant and class, or of all of a class."""

    requests_waiting: int = 0
    # Of what waits, prompts and what was generated before.
    tokens_waiting: int = 0
    # Arrival of the oldest that has not started; None if none waits for that.
    oldest: float | None = None
    requests_running: int = 0
    # KV blocks that running sequences hold.
    blocks: int = 0
    # Of requests that have started and not ended.
    generated_tokens: int = 0

    def merge(self, other: Load) -> None:
        """Adds what another one has."""
        self.requests_waiting += other.requests_waiting
        self.tokens_waiting += other.tokens_waiting
        if other.oldest is not None:
            self.oldest = other.oldest if self.oldest is None else min(self.oldest, other.oldest)
        self.requests_running += other.requests_running
        self.blocks += other.blocks
        self.generated_tokens += other.generated_tokens


@dataclass(frozen=True, slots=True)
class ClassView:
    """One class. `traffic_class` is None for what was refused before it had one."""

    traffic_class: TrafficClass | None
    load: Load
    counts: Counts
    recent: Service


@dataclass(frozen=True, slots=True)
class TenantView:
    """One tenant in one class. `tenant` is None for all that are gone."""

    tenant: str | None
    traffic_class: str
    load: Load
    counts: Counts


@dataclass(frozen=True, slots=True)
class TrafficView:
    """All classes, and the tenants that have most to do with the mesh now. The counts go on counting: to be read at
    once."""

    now: float
    classes: tuple[ClassView, ...]
    tenants: tuple[TenantView, ...]
    tenants_omitted: int
    # By model and revision of the pool.
    forecasts: tuple[tuple[str, str, ForecastView], ...]
    cancels: Mapping[CancelReason, Histogram]


def view_traffic(mesh: MeshState, classes: Iterable[TrafficClass], now: float, max_tenants: int) -> TrafficView:
    """The traffic now. Of the tenants at most `max_tenants`: first those with most that runs and waits."""
    loads = _loads(mesh)
    by_class: defaultdict[str, Load] = defaultdict(Load)
    by_tenant: defaultdict[str | None, Load] = defaultdict(Load)
    for (tenant, name), load in loads.items():
        by_class[name].merge(load)
        by_tenant[tenant].merge(load)
    traffic = mesh.traffic
    shown: list[TrafficClass | None] = [*classes]
    # Refusals without a class come last, if there are any.
    shown += [None] if "" in traffic.classes else []
    views = []
    for traffic_class in shown:
        name = "" if traffic_class is None else traffic_class.name
        counted = traffic.classes[name]
        views.append(ClassView(traffic_class, by_class[name], counted.counts, counted.recent(now)))
    tenants = sorted(
        traffic.tenants,
        key=lambda tenant: (
            by_tenant[tenant].requests_running + by_tenant[tenant].requests_waiting,
            _total(mesh, tenant),
        ),
        reverse=True,
    )
    return TrafficView(
        now,
        tuple(views),
        tuple(
            TenantView(tenant, name, loads.get((tenant, name), Load()), counts)
            for tenant in tenants[:max_tenants]
            for name, counts in traffic.tenants[tenant].items()
        ),
        max(0, len(tenants) - max_tenants),
        tuple((*pool, foresight.view()) for pool, foresight in mesh.foresights.items()),
        traffic.cancels,
    )


def _total(mesh: MeshState, tenant: str | None) -> int:
    return sum(counts.accepted for counts in mesh.traffic.tenants[tenant].values())


def _loads(mesh: MeshState) -> dict[tuple[str | None, str], Load]:
    """What is there of each tenant and class that has something. Takes no time for each that waits, but to find the
    oldest."""
    known = mesh.traffic.tenants
    loads: defaultdict[tuple[str | None, str], Load] = defaultdict(Load)

    def load_of(tenant: str, traffic_class: str) -> Load:
        return loads[tenant if tenant in known else None, traffic_class]

    def load_for(request: Request) -> Load:
        return load_of(request.tenant.tenant, request.traffic_class.name)

    # Of these something is on a worker.
    running: dict[Request, None] = {}
    for worker in mesh.fleet.workers.values():
        held = worker.ledger.held_blocks
        for sequence in worker.sequences.values():
            running[sequence.request] = None
            load_for(sequence.request).blocks += held.get(sequence.sequence_id, 0)
    started = dict(running)
    for pool in mesh.fleet.pools.values():
        for name, queue in pool.waiting.classes.items():
            for tenant, line in queue.waiting.items():
                started.update(_note_line(load_of(tenant, name), line))
    for request in running:
        load_for(request).requests_running += 1
    for request in started:
        load_for(request).generated_tokens += sum(sequence.generated for sequence in request.sequences)
    return dict(loads)


def _note_line(load: Load, line: Line) -> dict[Request, None]:
    """Adds what waits in a line. Returns those that have been on a worker before."""
    # They come first, and their outputs one by one.
    back = list(takewhile(lambda sequence: sequence.placements, line.sequences))
    newcomers = line.sequences[len(back) :]
    returned = dict.fromkeys(sequence.request for sequence in back)
    load.requests_waiting += len(returned) + len(newcomers)
    load.tokens_waiting += line.num_tokens
    if newcomers:
        oldest = min(map(_ARRIVED_AT, newcomers))
        load.oldest = oldest if load.oldest is None else min(load.oldest, oldest)
    return returned
