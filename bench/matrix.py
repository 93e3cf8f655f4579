"""Measures a mesh on this host as its clients see it: lengths of prompts and outputs, arrivals, who asks.

    python -m bench.matrix --out matrix
    python -m bench.matrix --short

Each cell is a run of `tercet bench` of its own, on one mesh with the embedded model and a store of tenants, at a rate
that keeps two quiet processors about half busy; a busier machine will refuse some. Cells of one tenant are interactive;
those of many have four tenants, two of which ask for batch, one of these urgently. Prefix caching is on, and no prompt
comes twice. Two arrivals and six pairs of lengths are crossed with one tenant and many; longer lengths and other
arrivals have a cell each. `--short` is a part of it that takes less than two minutes.
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import uvloop

from tercet.cli.demo import private
from tercet.config import load_config
from tercet.garbage import settle
from tercet.load.endpoint import Endpoint
from tercet.load.figures import Spread
from tercet.load.folder import write_run
from tercet.load.principals import Principals, Tenant
from tercet.load.runner import run
from tercet.load.summary import PointSummary
from tercet.load.workload import Workload
from tercet.mesh_processes import MeshProcesses
from tercet.sections import MeshConfig
from tercet.tenants.plan import TenantPlan
from tercet.tenants.store import Store

# Requests a second, by input and output.
RATES = {
    ("short", "short"): 4.0,
    ("short", "chat"): 1.6,
    ("medium", "short"): 2.0,
    ("medium", "chat"): 1.0,
    ("long", "short"): 0.6,
    ("long", "chat"): 0.4,
    ("short", "long"): 0.4,
    ("prefill-heavy", "short"): 0.3,
}
# What is crossed with each other.
LENGTHS = tuple(itertools.product(("short", "medium", "long"), ("short", "chat")))
ARRIVALS = ("poisson", "burst:5")
# How many come at once.
AT_ONCE = 24
# Name -> weight of its requests, class, priority.
MANY = {
    "alice": (4.0, "interactive", 0),
    "bob": (2.0, "interactive", 0),
    "carol": (1.0, "batch", 0),
    "dave": (1.0, "batch", -10),
}
OPERATOR = "operator"
PATIENCE_S = 15.0


@dataclass(frozen=True, slots=True)
class Cell:
    """A place in the matrix."""

    input: str
    output: str
    arrivals: str
    many: bool

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.input}-{self.output}-{self.arrivals.partition(':')[0]}-{'many' if self.many else 'one'}"

    def workload(self, keys: dict[str, str], seconds: float, seed: int) -> Workload:
        """Its requests; a fifth of the time is warm-up."""
        who = MANY if self.many else {"alice": MANY["alice"]}
        at_once = self.arrivals == "at-once"
        return Workload(
            input=self.input,
            output=self.output,
            arrivals=self.arrivals,
            rates=(RATES[self.input, self.output],),
            duration_s=0.0 if at_once else seconds,
            requests=AT_ONCE if at_once else 0,
            warm_up_s=0.0 if at_once else seconds / 5,
            seed=seed,
            ignore_eos=True,
            patience_s=PATIENCE_S,
            principals=Principals(
                tuple(
                    Tenant(name, keys[name], weight, traffic_class, priority)
                    for name, (weight, traffic_class, priority) in who.items()
                )
            ),
        )


ALONE = (
    Cell("short", "long", "poisson", many=False),
    Cell("prefill-heavy", "short", "constant", many=False),
    Cell("short", "short", "constant", many=False),
    Cell("short", "short", "ramp", many=True),
    Cell("short", "short", "at-once", many=True),
    Cell("short", "short", "closed:4", many=False),
)


def cells(*, short: bool) -> Iterator[Cell]:
    """All of them, or a part that has each value of what is crossed."""
    if short:
        yield Cell("short", "short", "poisson", many=False)
        yield Cell("short", "chat", "burst:5", many=True)
        yield Cell("medium", "chat", "poisson", many=True)
        yield Cell("long", "short", "burst:5", many=False)
        return
    for (given, wanted), arrivals, many in itertools.product(LENGTHS, ARRIVALS, (False, True)):
        yield Cell(given, wanted, arrivals, many)
    yield from ALONE


@click.command()
@click.option("--short", is_flag=True, help="four cells of 15 s instead of 30 of 30 s")
@click.option("--seconds", default=0.0, help="how long requests arrive in each cell")
@click.option("--seed", default=1, show_default=True, help="of the requests")
@click.option("--set", "settings", multiple=True, help="KEY=VALUE, such as scheduler.num_scheduler_steps=8")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="folder for a folder of each cell")
def main(short: bool, seconds: float, seed: int, settings: Sequence[str], out: Path | None) -> None:
    """Runs the cells and prints a line for each."""
    settle()
    chosen = list(cells(short=short))
    seconds = seconds or (15.0 if short else 30.0)
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/tenants.db"
        keys = _make_tenants(store)
        flags: dict[str, Any] = {"worker.kv_cache_memory": 1 << 30, "log.level": "warning"}
        flags |= dict(one.split("=", 1) for one in settings)
        config = private(load_config(flags=flags))
        config = dataclasses.replace(config, tenants=dataclasses.replace(config.tenants, store=store))
        started_with = " ".join(f"{key}={value}" for key, value in flags.items())
        uvloop.run(_measure(config, started_with, keys, chosen, seconds, seed, out, Path(folder)))


def _make_tenants(where: str) -> dict[str, str]:
    """Tenants and an operator, with their keys."""
    store = Store(where, time.time)
    store.create()
    keys = {name: store.add(name, TenantPlan(), operator=False).text for name in MANY}
    keys[OPERATOR] = store.add(OPERATOR, TenantPlan(), operator=True).text
    store.close()
    return keys


async def _measure(
    config: MeshConfig, started_with: str, keys: dict[str, str], chosen: Sequence[Cell], seconds: float, seed: int,
    out: Path | None, log_dir: Path,
) -> None:  # fmt: skip
    began = time.monotonic()
    async with MeshProcesses(config, on_change=lambda _: None, log_dir=log_dir) as mesh:
        endpoint = Endpoint(mesh.address, api_key=keys[OPERATOR], started_with=started_with)
        print(f"{len(chosen)} cells; milliseconds\n{_HEAD}", flush=True)
        for cell in chosen:
            result = await run(cell.workload(keys, seconds, seed), endpoint, command=f"bench.matrix {cell.name}")
            print(_line(cell, result.summary.points[0]), flush=True)
            if out is not None:
                write_run(out / cell.name, result)
    print(f"{time.monotonic() - began:.0f} s in all")


_HEAD = (
    f"{'cell':<33}{'asked/s':>8}{'requests':>9}{'completed':>10}{'refused':>8}{'failed':>7}{'qualified':>10}"
    f"{'ttft p50':>9}{'p95':>8}{'gap p50':>8}{'p95':>7}{'tokens/s':>9}{'lag p99':>8}"
)


def _line(cell: Cell, point: PointSummary) -> str:
    ttft, gap, lag = (_figures(each) for each in (point.ttft_ms, point.gap_ms, point.client_lag_ms))
    ends = point.outcomes
    asked = "-" if point.offered_per_s is None else f"{point.offered_per_s:.1f}"
    return (
        f"{cell.name:<33}{asked:>8}{point.offered:>9}{ends['completed']:>10}{ends['refused']:>8}"
        f"{ends['failed']:>7}{point.qualified:>10}"
        f"{ttft[0]:>9}{ttft[1]:>8}{gap[0]:>8}{gap[1]:>7}{point.accepted_tokens_per_s:>9.0f}{lag[2]:>8}"
    )


def _figures(spread: Spread | None) -> tuple[str, str, str]:
    return ("-", "-", "-") if spread is None else (f"{spread.p50:.0f}", f"{spread.p95:.0f}", f"{spread.p99:.1f}")


if __name__ == "__main__":
    main()
