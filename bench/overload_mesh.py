"""More requests than a mesh of real processes can do: what became of them, by flow, on the client's clock."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from bench.arrivals import Ask, Seen, connections, lag, send
from bench.offer import FIRST_TOKEN, Offer
from scheduler.simulator.flow_tally import FlowTally
from scheduler.traffic_class import TrafficClass, class_of
from tercet.client import AsyncClient
from tercet.load.figures import percentile
from tercet.mesh_processes import MeshProcesses
from tercet.sections import MeshConfig

# How long those that have arrived may take when no more come.
PATIENCE_S = 10.0
START_TIMEOUT_S = 300.0
# The kernel deals them out by chance.
CONNECTIONS_EACH = 8


@dataclass(frozen=True, slots=True)
class OverloadMesh:
    """Loads a mesh with so many gateways."""

    num_gateways: int = 1

    def capacity(self, config: MeshConfig, offer: Offer, count: int) -> float:
        """Requests a second of so many that come at once. Raises RuntimeError if some are refused."""

        async def measured() -> float:
            async with self._mesh(config) as clients:
                seen = await send(clients, [ask for _, ask in offer.asks(float("inf"), count)])
            problems = [each.error for each in seen if each.error is not None]
            if problems:
                raise RuntimeError(f"{len(problems)} of {count} requests at once were not done: {problems[0]}")
            return count / max(each.over for each in seen)

        return uvloop.run(measured())

    def under_loads(self, config: MeshConfig, offer: Offer, rates: Sequence[float]) -> Iterator[dict[str, Any]]:
        """What became of the requests at each rate, of a mesh that is started afresh for it."""
        classes = {name: class_of(name, settings) for name, settings in config.classes.items()}

        async def measured(rate: float) -> dict[str, Any]:
            async with self._mesh(config) as clients:
                return await under_load(clients, offer, rate, classes)

        for rate in rates:
            yield uvloop.run(measured(rate))

    @asynccontextmanager
    async def _mesh(self, config: MeshConfig) -> AsyncIterator[Sequence[AsyncClient]]:
        """Clients of a running mesh that has had its first requests."""
        with tempfile.TemporaryDirectory() as folder:
            mesh = MeshProcesses(
                config,
                on_change=lambda _: None,
                num_gateways=self.num_gateways,
                log_dir=Path(folder),
                start_timeout_s=START_TIMEOUT_S,
            )
            count = 1 if self.num_gateways == 1 else CONNECTIONS_EACH * self.num_gateways
            async with mesh, connections(mesh.address, count) as clients:
                for warm in (1, 8):
                    await send(clients, [Ask(0.0, (FIRST_TOKEN,) * 64, 8) for _ in range(warm * count)])
                yield clients


async def under_load(
    clients: Sequence[AsyncClient], offer: Offer, rate: float, classes: Mapping[str, TrafficClass]
) -> dict[str, Any]:
    """What became of the requests at a rate."""
    # Made before the clock starts: the client has enough to do.
    made = list(offer.asks(rate, round(rate * offer.seconds)))
    seen = await send(clients, [ask for _, ask in made], PATIENCE_S)
    asks = [ask for _, ask in made]
    begin, end = asks[len(asks) // 4].at, asks[-1].at
    tallies = {flow.name: FlowTally(classes[flow.traffic_class]) for flow in offer.flows}
    for (flow, _), each in zip(made, seen, strict=True):
        _count(tallies[flow.name], each, begin, end)
    refusals = [(each.over - each.sent) * 1e3 for each in seen if each.refused]
    result: dict[str, Any] = {
        "rate": rate,
        "seconds": end,
        "flows": {name: tally.report(end - begin) for name, tally in tallies.items()},
        "client_lag_ms": lag(seen),
    }
    if refusals:
        result["refusal_ms"] = {f"p{percent}": percentile(refusals, percent) for percent in (50, 99)}
    return result


def _count(tally: FlowTally, seen: Seen, begin: float, end: float) -> None:
    tally.offered += 1
    tally.accepted += seen.accepted
    if seen.tokens:
        tally.first_token.add(seen.ttft)
    elif seen.broken_off:
        # At least that.
        tally.first_token.add(seen.over - seen.sent)
    if seen.broken_off:
        tally.cancelled += 1
    elif seen.error is None:
        tally.complete(
            len(seen.ask.prompt) + len(seen.tokens), seen.ttft, seen.tpot, under_load=begin <= seen.over <= end
        )
    elif seen.refused:
        tally.refuse(seen.error)
    else:
        tally.failed[seen.error.reason] += 1
