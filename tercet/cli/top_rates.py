"""What happened per second between two looks at a mesh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tercet.messages import FleetInfo
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
    # By tenant and class.
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
            if (key := (each.tenant, each.traffic_class)) in tenants
        },
    )


def _flow(before: Counts | None, after: Counts, seconds: float) -> Flow:
    """What a class has counted began at its first request, which may be newer than `before`."""
    refused = {} if before is None else before.refused
    return Flow(
        accepted=(after.accepted - (before.accepted if before else 0)) / seconds,
        # Tokens of a request whose gateway went away are missing from its end on until it is counted.
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
