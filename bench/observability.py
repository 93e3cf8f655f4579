"""What it costs to be observed: throughput, and CPU time of each service for a token, with and without.

    python -m bench.observability
    python -m bench.observability --seconds 10 --rounds 20 --json observability.json
    python -m bench.observability --model embedded

A mesh for each way of being observed, and one for all at once, in one run: blocks of load take turns in an order that
is drawn anew in each round, so that what else the machine does falls on all alike. Streams ask again as soon as they
have ended. Scrapes come once a second, fifteen times as often as usual. Each block is compared with that of the same
round on the mesh that nobody observes; the figure is the median over rounds, with the bounds of 95 of 100 draws of
rounds.

Workers are simulated, of a step that takes 1 ms, so that it is gateway and scheduler that limit the mesh; with
`--model` they are real ones. What is counted whether or not anybody asks is in both sides: the first lines say what
that takes by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import time
import timeit
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click

from bench.plan_mesh import PlanMesh, Simulated, fixed, plan_mesh
from bench.span_sink import collector
from gateway.metrics import METRICS
from gateway.metrics_counts import RequestCounts
from gateway.metrics_reading import put_counts
from scheduler.actions import Plan
from scheduler.loop_counts import LoopCounts
from tercet.client import AsyncClient, Delta
from tercet.ledger.row import Outcome, Row, StageTimes
from tercet.metrics.collector import family
from tercet.metrics.distribution import SHORT_SECONDS, Distribution
from tercet.metrics.exposition import PATH
from tercet.metrics.labels import TenantLabels
from tercet.metrics.metric import Reading
from tercet.ports import free_ports
from worker.messages import BlockCounts
from worker.outcome import Outcome as StepOutcome
from worker.step_counts import StepCounts

PROMPT = [7] * 16
TOKENS = 128
SERVICES = ("gateway", "scheduler", "worker")
SCRAPE_SECONDS = 1.0
DRAWS = 2000
OFF = "off"


def ways(collector_port: int) -> dict[str, dict[str, Any]]:
    """The settings of each way of being observed, and of all at once. Those of OFF hold for all."""
    logs = {"log.level": "info", "log.format": "json"}
    # One of ten requests.
    traces = {"traces.endpoint": f"http://127.0.0.1:{collector_port}"}
    return {
        OFF: {"log.level": "warning"},
        "metrics": {"metrics.port": _free_range(len(SERVICES))},
        "logs": logs,
        "traces": traces,
        "all": {"metrics.port": _free_range(len(SERVICES)), **logs, **traces},
    }


@dataclass(frozen=True, slots=True)
class Block:
    """One block of load: tokens that clients got, seconds, and CPU seconds by service."""

    way: str
    round: int
    tokens: int
    seconds: float
    cpu_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class Figure:
    """By how many percent something was more than on the mesh that nobody observes: median over rounds, and bounds."""

    percent: float
    low: float
    high: float


def compare(mine: Sequence[float], base: Sequence[float], rng: random.Random) -> Figure:
    """Pairs of the same rounds."""
    ratios = [one / other for one, other in zip(mine, base, strict=True)]
    drawn = sorted(median(rng.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    low, high = drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS)]
    return Figure(*(100 * (ratio - 1) for ratio in (median(ratios), low, high)))


async def load(address: str, streams: int, seconds: float) -> tuple[int, float]:
    """Tokens and seconds of streams that begin again as soon as they have ended."""
    began_at = time.perf_counter()
    tokens = 0

    async def stream(client: AsyncClient) -> None:
        nonlocal tokens
        while time.perf_counter() - began_at < seconds:
            async with client.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True, temperature=0) as events:
                async for event in events:
                    if isinstance(event, Delta):
                        tokens += len(event.token_ids)

    async with AsyncClient(address) as client:
        await asyncio.gather(*(stream(client) for _ in range(streams)))
    return tokens, time.perf_counter() - began_at


async def block(mesh: PlanMesh, way: str, number: int, streams: int, seconds: float) -> Block:
    """One block on one mesh."""
    before = {name: mesh.cpu_seconds(name) for name in SERVICES}
    tokens, took_s = await load(mesh.gateway, streams, seconds)
    cpu_s = {name: mesh.cpu_seconds(name) - before[name] for name in SERVICES}
    return Block(way, number, tokens, took_s, cpu_s)


@contextlib.asynccontextmanager
async def scraped(port: int) -> AsyncIterator[None]:
    """All services from that port on are scraped while the scope lasts; 0: none is."""
    if not port:
        yield
        return

    def scrape(each: int) -> None:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{each}{PATH}", timeout=5) as answer,
        ):
            answer.read()

    async def run() -> None:
        while True:
            for each in range(port, port + len(SERVICES)):
                await asyncio.to_thread(scrape, each)
            await asyncio.sleep(SCRAPE_SECONDS)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def measure(model: str, rounds: int, streams: int, seconds: float, rng: random.Random) -> list[Block]:
    """All blocks."""
    simulated = None if model else Simulated(step_ms=1.0)
    common = {"model.model": model or "embedded", "worker.max_num_seqs": max(64, streams)}
    blocks: list[Block] = []
    async with contextlib.AsyncExitStack() as stack:
        meshes, observed = {}, ways(await stack.enter_async_context(collector()))
        for way, flags in observed.items():
            settings = fixed(0) | common | observed[OFF] | flags
            meshes[way] = await stack.enter_async_context(plan_mesh(settings, simulated))
        # The first block of each warms it up.
        for number in range(rounds + 1):
            for way in rng.sample(list(meshes), len(meshes)):
                # Not while others have their turn.
                async with scraped(observed[way].get("metrics.port", 0)):
                    found = await block(meshes[way], way, number, streams, seconds)
                if number:
                    blocks.append(found)
                    click.echo(f"  {number:3} {way:8} {found.tokens / found.seconds:9.0f} tokens/s", err=True)
    return blocks


def report(blocks: Sequence[Block], rng: random.Random) -> dict[str, dict[str, Figure]]:
    """Of each way, what is more than without: tokens a second, and CPU time of each service for a token."""
    by_way: dict[str, list[Block]] = {}
    for each in sorted(blocks, key=lambda each: each.round):
        by_way.setdefault(each.way, []).append(each)

    def compared(way: str, figure: Callable[[Block], float]) -> Figure:
        return compare([figure(each) for each in by_way[way]], [figure(each) for each in by_way[OFF]], rng)

    found = {}
    for way in by_way:
        if way != OFF:
            found[way] = {"throughput": compared(way, lambda each: each.tokens / each.seconds)}
            for name in SERVICES:
                found[way][f"{name} cpu"] = compared(way, lambda each, name=name: each.cpu_s[name] / each.tokens)  # type: ignore[misc]
    return found


def calls() -> dict[str, float]:
    """What is counted in any case, and what a scrape takes, in microseconds a call."""
    distribution = Distribution(SHORT_SECONDS)
    counts = RequestCounts(TenantLabels((), 32), ("interactive", "rag", "batch"))
    row = Row(
        1, "id", "tenant", "interactive", "model", "revision", 1, 0.0, Outcome.COMPLETED, "stop", 100, 10, 50, 50, 0,
        0.1, 0.2, 0.02, 0.05, 1.2, 0.1, cost=0.1, slo="met",
        stages=StageTimes(0.001, 0.002, 0.0, 0.001, 0.1, 0.1, 0.9, 0.0, 0.0),
    )  # fmt: skip
    reading = Reading()

    def look() -> None:
        put_counts(Reading(), counts)

    def text() -> None:
        for metric in METRICS:
            family(metric, reading.samples(metric))

    steps, loop = StepCounts(), LoopCounts()
    ran, blocks, plan = StepOutcome(list(range(32)), list(range(32))), BlockCounts(1, 2, 3), Plan(1, 8, (), (), 0)

    def step() -> None:
        steps.begin(1.0)
        steps.step(ran, 9, blocks, 1.0)

    def round_of_plans() -> None:
        loop.round_s.add(0.001)
        loop.command(plan)

    for traffic_class in ("interactive", "rag", "batch"):
        counts.times[traffic_class].total.add(1.0)
    put_counts(reading, counts)
    return {
        "a gap between tokens": _us(lambda: distribution.add(0.02), 40_000),
        "a step of a worker": _us(step, 10_000),
        "a round of a scheduler": _us(round_of_plans, 10_000),
        "a row": _us(lambda: counts.closed(row, None), 4_000),
        "a look at a gateway": _us(look, 200),
        "its samples": _us(text, 40),
    }


def _us(call: Callable[[], object], times: int) -> float:
    return min(timeit.repeat(call, number=times, repeat=5)) / times * 1e6


def _free_range(count: int) -> int:
    """The first of so many free ports that follow each other."""
    while True:
        first = free_ports(1)[0]
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


@click.command()
@click.option("--model", default="", help="as the setting model.model, for real workers; else they are simulated")
@click.option("--rounds", default=12, show_default=True)
@click.option("--streams", default=32, show_default=True, help="that run at a time")
@click.option("--seconds", default=5.0, show_default=True, help="of each block")
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "out", type=click.Path(path_type=Path), default=None, help="file to write")
def main(model: str, rounds: int, streams: int, seconds: float, seed: int, out: Path | None) -> None:
    """Runs the blocks and prints what came of them."""
    rng = random.Random(seed)
    us = calls()
    for name, each in us.items():
        click.echo(f"{name}: {each:.2f} us")
    blocks = asyncio.run(measure(model, rounds, streams, seconds, rng))
    found = report(blocks, rng)
    base = [each for each in blocks if each.way == OFF]
    click.echo(f"off: {median(each.tokens / each.seconds for each in base):.0f} tokens/s")
    for name in SERVICES:
        click.echo(f"off: {name} {median(each.cpu_s[name] / each.tokens for each in base) * 1e6:.1f} us of CPU a token")
    for way, figures in found.items():
        for name, figure in figures.items():
            click.echo(f"{way}: {name} {figure.percent:+.1f} % ({figure.low:+.1f} to {figure.high:+.1f})")
    if out is not None:
        result = {"calls_us": us, "blocks": [asdict(each) for each in blocks]}
        result["figures"] = {
            way: {name: asdict(each) for name, each in figures.items()} for way, figures in found.items()
        }
        out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
