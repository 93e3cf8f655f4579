"""Offers a mesh less and more than it can do, with admission and without: what came of it, class by class.

    python -m bench.overload --json overload.json
    python -m bench.overload --simulate --json overload.json --chart overload.svg
    python -m bench.overload --device cuda --preset 8b --mix lengths --rates 80 --seconds 60 --admission enforce

Three kinds of requests arrive at random, independently (Poisson): chat (interactive: short in, medium out), retrieval
(rag: long in, short out) and summaries (batch: long in, long out). First so many at once say what the mesh can do; then
it is offered `--loads` of that, or `--rates`. A request is qualified if it got all its tokens and what its class
promises; those are counted from the time when a quarter of all has arrived until the last one arrives.

By default gateway, scheduler and worker are real processes on this host, asked through the public API. `--simulate`
runs the real scheduler on a virtual clock with simulated workers of an H200's speed instead: a client on this host
would be slower than they are, and there is nothing to be timed but the scheduler's decisions.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import click

from bench import overload_study
from bench.chart import Panel, chart
from bench.dummy_model import MAX_MODEL_LEN, write_dummy_model
from bench.offer import Offer
from bench.overload_mesh import OverloadMesh
from bench.workload import PRESETS
from scheduler.simulator.workload import Flow, Lengths
from tercet.cli.demo import private
from tercet.config import load_config
from tercet.garbage import settle
from tercet.sections import MeshConfig

Figures = dict[str, Any]

# On two cores and a small model; on a GPU, and simulated.
SMALL = (
    Flow("chat", Lengths(60, 0.6, 400), Lengths(40, 0.6, 160), 6.0, "interactive"),
    Flow("retrieval", Lengths(400, 0.4, 1500), Lengths(8, 0.4, 32), 3.0, "rag"),
    Flow("summaries", Lengths(400, 0.4, 1500), Lengths(64, 0.4, 200), 1.0, "batch"),
)
LARGE = (
    Flow("chat", Lengths(300, 0.8, 2000), Lengths(150, 0.7, 600), 6.0, "interactive"),
    Flow("retrieval", Lengths(2000, 0.4, 3500), Lengths(60, 0.5, 250), 3.0, "rag"),
    Flow("summaries", Lengths(2500, 0.3, 3000), Lengths(400, 0.4, 1000), 1.0, "batch"),
)
# All in one class, as in bench/workload.py: what peers are measured with.
LENGTHS = (Flow("chat", Lengths(221, 1.0, 1024), Lengths(193, 0.85, 1024), 1.0, "interactive"),)
MIXES = {"small": SMALL, "large": LARGE, "lengths": LENGTHS}
# Without admission nothing is refused: neither by forecast nor by the length of a queue.
WITHOUT = {"scheduler.admission_mode": "off", "scheduler.max_queued_requests": 1_000_000,
           "scheduler.max_queued_tokens": 1_000_000_000}  # fmt: skip


@click.command()
@click.option("--simulate", is_flag=True, help="on a virtual clock, with workers of an H200's speed")
@click.option("--preset", type=click.Choice(list(PRESETS)), default="tiny", help="shape of the model, random weights")
@click.option("--device", default="cpu", help="as the setting worker.device")
@click.option("--mix", type=click.Choice(list(MIXES)), default=None, help="default: small on a CPU, else large")
@click.option("--loads", default="0.5,1,2,4", show_default=True, help="parts of the capacity")
@click.option("--rates", default="", help="requests a second instead; the capacity is not measured then")
@click.option("--seconds", default=30.0, show_default=True, help="how long requests arrive at each load")
@click.option("--at-once", default=0, help="requests that measure the capacity; default: 100 on a CPU, else 2000")
@click.option("--admission", default="enforce,off", show_default=True, help="as the setting scheduler.admission_mode")
@click.option("--num-gateways", default=1, show_default=True, help="of real processes, on one port")
@click.option("--seed", default=1, show_default=True, help="of the requests")
@click.option("--set", "settings", multiple=True, help="KEY=VALUE, such as classes.interactive.gap_ms=40")
@click.option("--json", "out", type=click.Path(path_type=Path, dir_okay=False), default=None, help="file to write")
@click.option("--chart", "picture", type=click.Path(path_type=Path, dir_okay=False), default=None, help="SVG to write")
def main(
    simulate: bool, preset: str, device: str, mix: str | None, loads: str, rates: str, seconds: float, at_once: int,
    admission: str, num_gateways: int, seed: int, settings: Sequence[str], out: Path | None, picture: Path | None,
) -> None:  # fmt: skip
    """Runs the loads and prints what came of each as it ends."""
    on_cpu = device == "cpu" and not simulate
    offer = Offer(MIXES[mix or ("small" if on_cpu else "large")], seconds, seed, MAX_MODEL_LEN)
    at_once = at_once or (100 if on_cpu else 2000)
    way: Way = overload_study if simulate else OverloadMesh(num_gateways)
    settle()
    result: Figures = {"device": "simulated" if simulate else device, "preset": preset, "settings": list(settings)}
    result["runs"] = []
    with tempfile.TemporaryDirectory() as folder:
        write_dummy_model(PRESETS[preset], Path(folder))

        def config(mode: str) -> MeshConfig:
            flags = {
                **_flags(device, folder, small=on_cpu),
                **(WITHOUT if mode == "off" else {}),
                "scheduler.admission_mode": mode,
            }
            return private(load_config(flags=flags | dict(one.split("=", 1) for one in settings)))

        asked = _numbers(rates)
        if not asked:
            result["capacity"] = capacity = way.capacity(config("off"), offer.alike(), at_once)
            print(f"capacity: {capacity:.2f} requests/s, by {at_once} at once", flush=True)
            asked = [load * capacity for load in _numbers(loads)]
        for mode in admission.split(","):
            for run in way.under_loads(config(mode), offer, asked):
                result["runs"].append({"admission": mode, **run})
                print("\n".join(_lines(result["runs"][-1], result.get("capacity"))), flush=True)
                if out is not None:
                    out.write_text(json.dumps(result, indent=1))
    if picture is not None:
        picture.write_text(_chart(result))


class Way(Protocol):
    """How to load a mesh: real processes, or a virtual clock."""

    def capacity(self, config: MeshConfig, offer: Offer, count: int) -> float:
        """Requests a second of so many that come at once. Raises RuntimeError if some are refused."""

    def under_loads(self, config: MeshConfig, offer: Offer, rates: Sequence[float]) -> Iterator[Figures]:
        """What became of the requests at each rate."""


def _flags(device: str, folder: str, *, small: bool) -> Figures:
    return {
        "model.model": folder,
        "model.load_format": "dummy",
        "model.max_model_len": MAX_MODEL_LEN,
        "worker.device": device,
        "worker.kv_cache_memory": 1 << 30 if small else 40 << 30,
        "worker.max_num_batched_tokens": 512 if small else 8192,
        "worker.max_num_seqs": 32 if small else 256,
        # A step of 32 decodes takes nearly 50 ms on a CPU: prompts would have next to nothing of it.
        "scheduler.max_mixed_step_ms": 150.0 if small else 50.0,
        "log.level": "warning",
    }


def _numbers(text: str) -> list[float]:
    return [float(each) for each in text.split(",") if each]


def _lines(run: Figures, capacity: float | None) -> list[str]:
    """A run as lines of a table."""
    load = f"{run['rate']:.1f} requests/s" + (f", {run['rate'] / capacity:.2g} x capacity" if capacity else "")
    requests, tokens = (
        sum(flow[f"qualified_{what}per_second"] for flow in run["flows"].values()) for what in ("", "tokens_")
    )
    lines = [f"admission {run['admission']}, {load}: {requests:.2f} qualified/s with {tokens:,.0f} tokens/s"]
    for name, flow in run["flows"].items():
        ttft = flow["ttft_ms"]
        refused = sum(flow["refused"].values())
        reasons = ", ".join(f"{count} {reason}" for reason, count in {**flow["refused"], **flow["failed"]}.items())
        retry = f", {flow['refused_with_retry'] / refused:.0%} with a time to retry" if refused else ""
        lines.append(
            f"  {name:<10} {flow['offered']:>5} offered, {flow['accepted']:>5} accepted, {flow['qualified']:>5} "
            f"qualified, {flow['qualified_per_second']:6.2f}/s; TTFT p50 {ttft['p50']:,.0f}, p95 {ttft['p95']:,.0f} ms"
            + (f"; {reasons}{retry}" if reasons else "")
        )
    for key, what in (("refusal_ms", "refused within"), ("client_lag_ms", "client late by")):
        if key in run:
            lines.append(f"  {what} " + ", ".join(f"{name} {value:.1f}" for name, value in run[key].items()) + " ms")
    return lines


def _chart(result: Figures) -> str:
    """Qualified requests and first tokens over the load, with admission and without."""
    qualified: dict[str, list[tuple[float, float]]] = {}
    first: dict[str, list[tuple[float, float]]] = {}
    for run in result["runs"]:
        name = f"admission {run['admission']}"
        x = round(run["rate"] / result["capacity"], 3) if "capacity" in result else run["rate"]
        rate = sum(flow["qualified_per_second"] for flow in run["flows"].values())
        qualified.setdefault(name, []).append((x, rate))
        chat = next(iter(run["flows"].values()))
        first.setdefault(name, []).append((x, max(1.0, chat["ttft_ms"]["p95"])))
    offered = "offered, of the capacity" if "capacity" in result else "offered, requests/s"
    return chart(
        [
            Panel("qualified requests/s", offered, qualified),
            Panel("chat: first token, p95, ms", offered, first, log=True, limit=1000.0),
        ]
    )


if __name__ == "__main__":
    main()
