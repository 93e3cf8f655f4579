"""What classes ask for and get, at one moment: all that can be told without a look at each tenant and each request.

A scrape asks for it every few seconds, whatever waits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tercet.metrics.distribution import Distribution

from .events import CancelReason
from .foresight import ForecastView
from .sequence import Request
from .state import MeshState
from .traffic import ClassTraffic
from .traffic_class import TrafficClass


@dataclass(slots=True)
class ClassLoad:
    """What is there now of a class: requests of which something waits, tokens of that, arrival of the oldest that has
    not started, and requests of which something is on a worker."""

    requests_waiting: int = 0
    tokens_waiting: int = 0
    oldest: float | None = None
    requests_running: int = 0


@dataclass(frozen=True, slots=True)
class ClassView:
    """One class. `traffic_class` is None for what was refused before it had one. What was counted goes on counting."""

    traffic_class: TrafficClass | None
    load: ClassLoad
    traffic: ClassTraffic


@dataclass(frozen=True, slots=True)
class ClassesView:
    """All classes, forecasts by model and revision of the pool, and what cancels took by what they were for."""

    now: float
    classes: tuple[ClassView, ...]
    forecasts: tuple[tuple[str, str, ForecastView], ...]
    cancel_s: Mapping[CancelReason, Distribution]


def view_classes(mesh: MeshState, classes: Iterable[TrafficClass], now: float) -> ClassesView:
    """The classes now. Takes time for what is on workers, and for each class."""
    loads = _loads(mesh)
    traffic = mesh.traffic
    shown: list[TrafficClass | None] = [*classes]
    # Refusals without a class come last, if there are any.
    shown += [None] if "" in traffic.classes else []
    views = []
    for traffic_class in shown:
        name = "" if traffic_class is None else traffic_class.name
        views.append(ClassView(traffic_class, loads[name], traffic.classes[name]))
    forecasts = tuple((*pool, foresight.view()) for pool, foresight in mesh.foresights.items())
    return ClassesView(now, tuple(views), forecasts, traffic.cancel_s)


def _loads(mesh: MeshState) -> defaultdict[str, ClassLoad]:
    loads: defaultdict[str, ClassLoad] = defaultdict(ClassLoad)
    for pool in mesh.fleet.pools.values():
        for name, queue in pool.waiting.classes.items():
            load, counts = loads[name], queue.counts
            load.requests_waiting += counts.requests
            load.tokens_waiting += counts.tokens
            # They are in the order in which they came to wait: the first that has not started is the oldest of these.
            first = next((request for request in queue.requests if not _has_started(request)), None)
            if first is not None:
                load.oldest = first.arrived_at if load.oldest is None else min(load.oldest, first.arrived_at)
    running = {sequence.request for worker in mesh.fleet.workers.values() for sequence in worker.sequences.values()}
    for request in running:
        loads[request.traffic_class.name].requests_running += 1
    return loads


def _has_started(request: Request) -> bool:
    return any(sequence.placements for sequence in request.sequences)
