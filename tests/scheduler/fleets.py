"""Fleets for tests that need no mesh."""

from __future__ import annotations

from scheduler.events import WorkerInfo
from scheduler.fleet import Fleet
from scheduler.worker import Worker


def fleet_of(*infos: WorkerInfo, addresses: int | None = None) -> Fleet:
    """One worker of each kind; of `addresses` addresses those behind them have not said anything."""
    fleet = Fleet(tuple(f"host:{index}" for index in range(len(infos) if addresses is None else addresses)))
    for index, info in enumerate(infos):
        fleet.add(Worker(index, f"host:{index}", info))
    return fleet
