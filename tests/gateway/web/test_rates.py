"""The console and `tercet top` reckon the same rates."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from tercet.cli.top_rates import Moment, rates_between, rates_to_data
from tercet.mesh_info import FleetInfo, WorkerInfo
from tercet.traffic import ClassTraffic, Counts, Kept, Load, Promises, Spread, Targets, TenantTraffic, TrafficInfo

from .browser import Page

SCRIPT = """
const [pairs] = arguments;
return import("/console/rates.js").then(({ ratesBetween, sum }) => pairs.map(([before, after]) => {
  const rates = ratesBetween(before, after);
  return rates && {
    seconds: rates.seconds,
    tokens: rates.tokens,
    steps: sum([...rates.workers.values()].map((each) => each.steps)),
    classes: Object.fromEntries(rates.classes),
    tenants: [...rates.tenants].map(([key, flow]) => [...JSON.parse(key), flow]),
  };
}));
"""


def moment(rng: random.Random) -> Moment:
    def counts() -> Counts:
        refused = {reason: rng.randint(0, 9) for reason in ("QUEUE_FULL", "NO_WORKER") if rng.random() < 0.6}
        promises = Promises(Kept(), Kept(), Kept())
        return Counts(rng.randint(0, 9), 0, 0, refused, {}, promises, 0, 0, rng.randint(0, 999), 0, 0)

    load, none, nothing = Load(0, 0, None, 0, 0), Targets(0, 0, 0, 0), Spread(0, 0, 0, 0, 0)
    promises = Promises(Kept(), Kept(), Kept())
    return Moment(
        FleetInfo(
            0, 0, 0, 0,
            tuple(
                WorkerInfo(address, True, "m", "cpu", 0, 1, 1, 0, 0, rng.randint(0, 99), 0)
                for address in ("a", "b", "c")
                if rng.random() < 0.7
            ),
        ),
        TrafficInfo(
            epoch=rng.choice((1, 1, 1, 2)),
            uptime_s=rng.randint(0, 8) / 2,
            classes=tuple(
                ClassTraffic(name, load, counts(), none, promises, nothing, nothing)
                for name in ("interactive", "batch", "")
                if rng.random() < 0.7
            ),
            tenants=tuple(
                TenantTraffic(name, "batch", load, counts()) for name in ("acme", "", None) if rng.random() < 0.7
            ),
            tenants_omitted=0,
        ),
    )  # fmt: skip


def told(seen: Moment) -> dict[str, Any]:
    return {"fleet": dataclasses.asdict(seen.fleet), "traffic": dataclasses.asdict(seen.traffic)}


def some(flow: dict[str, Any]) -> dict[str, Any]:
    """A flow without what did not flow."""
    return {**flow, "refused": {reason: rate for reason, rate in flow["refused"].items() if rate}}


async def test_rates_are_those_of_top(modules: Page) -> None:
    rng = random.Random(7)
    pairs = [(moment(rng), moment(rng)) for _ in range(100)]
    found = await modules.run(SCRIPT, [[told(before), told(after)] for before, after in pairs])
    assert sum(each is not None for each in found) > 20
    for (before, after), here in zip(pairs, found, strict=True):
        rates = rates_between(before, after)
        if rates is None:
            assert here is None
            continue
        there = rates_to_data(rates)
        for name in ("seconds", "tokens", "steps"):
            assert here[name] == pytest.approx(there[name])
        assert {name: some(flow) for name, flow in here["classes"].items()} == there["classes"]
        assert [(tenant, name, some(flow)) for tenant, name, flow in here["tenants"]] == [
            (each.pop("tenant"), each.pop("traffic_class"), each) for each in there["tenants"]
        ]
