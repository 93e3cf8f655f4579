"""Looks at a mesh with numbers that are easy to follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tercet.cli.top_rates import Moment
from tercet.mesh_info import FleetInfo, WorkerInfo
from tercet.traffic import (
    ClassTraffic,
    Counts,
    ForecastQuality,
    Kept,
    Load,
    Promises,
    Spread,
    Targets,
    TenantTraffic,
    TrafficInfo,
)

NO_PROMISES = Promises(Kept(), Kept(), Kept())
CALM = Load(0, 0, None, 0, 0)


def counts(
    accepted: int = 0, tokens: int = 0, refused: Mapping[str, int] | None = None, promises: Promises = NO_PROMISES
) -> Counts:
    return Counts(accepted, accepted, 0, refused or {}, {}, promises, 0, 0, tokens, 0, 0)


def worker(address: str = "host:1", **changes: Any) -> WorkerInfo:
    values: dict[str, Any] = {
        "live": True, "model": "m", "device": "cpu", "sequences": 3, "blocks_total": 100, "blocks_free": 25,
        "blocks_cached": 25, "blocks_used": 50, "steps": 0, "tokens": 0,
    }  # fmt: skip
    return WorkerInfo(address, **{**values, **changes})


def a_class(name: str = "interactive", **changes: Any) -> ClassTraffic:
    values: dict[str, Any] = {
        "load": CALM, "counts": counts(), "targets": Targets(0.0, 0.0, 0.0, 0.0), "recent": NO_PROMISES,
        "ttft": Spread(0, 0.0, 0.0, 0.0, 0.0), "queue": Spread(0, 0.0, 0.0, 0.0, 0.0),
    }  # fmt: skip
    return ClassTraffic(name, **{**values, **changes})


def tenant(name: str | None, accepted: int = 0, load: Load = CALM, **more: Any) -> TenantTraffic:
    return TenantTraffic(name, "interactive", load, counts(accepted, **more))


def moment(
    uptime_s: float = 10.0,
    classes: tuple[ClassTraffic, ...] = (),
    tenants: tuple[TenantTraffic, ...] = (),
    workers: tuple[WorkerInfo, ...] = (),
    epoch: int = 1,
    tenants_omitted: int = 0,
    forecasts: tuple[ForecastQuality, ...] = (),
) -> Moment:
    return Moment(
        FleetInfo(2, 4, 17, 1, workers), TrafficInfo(epoch, uptime_s, classes, tenants, tenants_omitted, forecasts)
    )
