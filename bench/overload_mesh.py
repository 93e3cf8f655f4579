"""More requests than a mesh of real processes can do: what became of them, by flow, on the client's clock."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from bench.arrivals import failure, greedy, lag, over, send, tpot, ttft
from bench.offer import FIRST_TOKEN, Offer
from scheduler.simulator.flow_tally import FlowTally
from scheduler.traffic_class import TrafficClass, class_of
from tercet.load.exchange import Exchange
from tercet.load.figures import percentile
from tercet.load.grpc_target import GrpcTarget
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
            async with self._mesh(config) as target:
                everyone = await send(target, [ask for _, ask in offer.asks(float("inf"), count)])
            problems = [seen.error for seen in everyone if seen.error is not None]
            if problems:
                raise RuntimeError(f"{len(problems)} of {count} requests at once were not done: {problems[0]}")
            return count / max(seen.end_s or 0.0 for seen in everyone)

        return uvloop.run(measured())

    def under_loads(self, config: MeshConfig, offer: Offer, rates: Sequence[float]) -> Iterator[dict[str, Any]]:
        """What became of the requests at each rate, of a mesh that is started afresh for it."""
        classes = {name: class_of(name, settings) for name, settings in config.classes.items()}

        async def measured(rate: float) -> dict[str, Any]:
            async with self._mesh(config) as target:
                return await under_load(target, offer, rate, classes)

        for rate in rates:
            yield uvloop.run(measured(rate))

    @asynccontextmanager
    async def _mesh(self, config: MeshConfig) -> AsyncIterator[GrpcTarget]:
        """A client of a running mesh that has had its first requests."""
        with tempfile.TemporaryDirectory() as folder:
            mesh = MeshProcesses(
                config,
                on_change=lambda _: None,
                num_gateways=self.num_gateways,
                log_dir=Path(folder),
                start_timeout_s=START_TIMEOUT_S,
            )
            count = 1 if self.num_gateways == 1 else CONNECTIONS_EACH * self.num_gateways
            async with mesh, GrpcTarget(mesh.address, connections=count) as target:
                for warm in (1, 8):
                    await send(target, [greedy(0.0, (FIRST_TOKEN,) * 64, 8) for _ in range(warm * count)])
                yield target


async def under_load(
    target: GrpcTarget, offer: Offer, rate: float, classes: Mapping[str, TrafficClass]
) -> dict[str, Any]:
    """What became of the requests at a rate."""
    # Made before the clock starts: the client has enough to do.
    made = list(offer.asks(rate, round(rate * offer.seconds)))
    everyone = await send(target, [ask for _, ask in made], PATIENCE_S)
    moments = [ask.due_s or 0.0 for _, ask in made]
    begin, end = moments[len(moments) // 4], moments[-1]
    tallies = {flow.name: FlowTally(classes[flow.traffic_class]) for flow in offer.flows}
    for (flow, _), seen in zip(made, everyone, strict=True):
        _count(tallies[flow.name], seen, begin, end)
    refusals = [over(seen) * 1e3 for seen in everyone if seen.error is not None and seen.begun is None]
    result: dict[str, Any] = {
        "rate": rate,
        "seconds": end,
        "flows": {name: tally.report(end - begin) for name, tally in tallies.items()},
        "client_lag_ms": lag(everyone),
    }
    if refusals:
        result["refusal_ms"] = {f"p{percent}": percentile(refusals, percent) for percent in (50, 99)}
    return result


def _count(tally: FlowTally, seen: Exchange, begin: float, end: float) -> None:
    tally.offered += 1
    tally.accepted += seen.begun is not None
    if seen.tokens:
        tally.first_token.add(ttft(seen))
    elif seen.broken_off:
        # At least that.
        tally.first_token.add(over(seen))
    problem = failure(seen)
    if seen.broken_off:
        tally.cancelled += 1
    elif problem is None:
        length = len(seen.ask.prompt) + seen.tokens
        tally.complete(length, ttft(seen), tpot(seen), under_load=begin <= (seen.end_s or 0.0) <= end)
    elif seen.begun is None:
        tally.refuse(problem)
    else:
        tally.failed[problem.reason] += 1
