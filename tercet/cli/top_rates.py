"""What happened per second between two looks at a mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tercet.mesh_info import FleetInfo
from tercet.traffic import Counts, TrafficInfo


@dataclass(frozen=True, slots=True)
class Moment:
    """One look at a mesh."""

    fleet: FleetInfo
    traffic: TrafficInfo


@dataclass(frozen=True, slots=True)
class Flow:
    """Of one class, or of one tenant in one class: requests and generated tokens per second."""

    accepted: float
    tokens: float
    # By reason.
    refused: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second, over `seconds`."""

    seconds: float
    steps: float
    tokens: float
    # By name.
    classes: Mapping[str, Flow]
    # By tenant and class; of those that both looks have. Those that are gone are no flow: others join them.
    tenants: Mapping[tuple[str | None, str], Flow] = field(default_factory=dict)


def rates_between(before: Moment, after: Moment) -> Rates | None:
    """None if the scheduler was started anew between, or no time passed."""
    seconds = after.traffic.uptime_s - before.traffic.uptime_s
    if before.traffic.epoch != after.traffic.epoch or seconds <= 0:
        return None
    classes = {each.name: each.counts for each in before.traffic.classes}
    tenants = {(each.tenant, each.traffic_class): each.counts for each in before.traffic.tenants}
    by_class = {each.name: _flow(classes.get(each.name), each.counts, seconds) for each in after.traffic.classes}
    return Rates(
        seconds=seconds,
        steps=_steps(before, after) / seconds,
        tokens=sum(flow.tokens for flow in by_class.values()),
        classes=by_class,
        tenants={
            key: _flow(tenants.get(key), each.counts, seconds)
            for each in after.traffic.tenants
            if each.tenant is not None and (key := (each.tenant, each.traffic_class)) in tenants
        },
    )


def rates_to_data(rates: Rates) -> dict[str, Any]:
    """The same as JSON data, with a list of tenants: what JSON has as keys are names alone."""
    data = dataclasses.asdict(rates)
    data["tenants"] = [
        {"tenant": tenant, "traffic_class": traffic_class, **dataclasses.asdict(flow)}
        for (tenant, traffic_class), flow in rates.tenants.items()
    ]
    return data


def _flow(before: Counts | None, after: Counts, seconds: float) -> Flow:
    """`before` is None if nothing was counted then. No rate is below zero: a tenant that went and came begins anew."""
    refused = {} if before is None else before.refused
    return Flow(
        accepted=max(0, after.accepted - (before.accepted if before else 0)) / seconds,
        tokens=max(0, after.generated_tokens - (before.generated_tokens if before else 0)) / seconds,
        refused={
            reason: (count - refused.get(reason, 0)) / seconds
            for reason, count in after.refused.items()
            if count > refused.get(reason, 0)
        },
    )


def _steps(before: Moment, after: Moment) -> int:
    """Steps of all workers. Those of a worker count from the start of its stream."""
    known = {worker.address: worker.steps for worker in before.fleet.workers}
    return sum(
        worker.steps - (steps if worker.steps >= (steps := known.get(worker.address, worker.steps)) else 0)
        for worker in after.fleet.workers
    )
