"""How good forecasts of the first token are, and what is refused for them, on the virtual clock.

    python -m bench.forecast --seeds 11,12,13
    python -m bench.forecast --only chat,mix --loads 2,4

Each case is run twice with the same requests: enforced, and in shadow mode, where nothing is refused for a forecast, so
that it shows which refusals would have been wrong. Errors are medians, of the forecasts that clients are told, as parts
of the actual time: of all, by what a request was believed to wait for, and of all in shadow mode. `wrong` is the part
of those to be refused, and the part of all with a target, that was to be refused and met it in the shadow run; `late`
the part of accepted requests with a target that missed it, enforced, and `p95` of the first tokens of interactive ones.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import click

from scheduler.actions import Action, Log
from scheduler.admission import AdmissionMode, QueueBounds
from scheduler.policy import Policy
from scheduler.simulator.capacity import CapacityMesh, Fleet, simulated_info
from scheduler.simulator.cost import StepCost
from scheduler.simulator.workload import Arrivals, Flow, Lengths, Workload
from scheduler.tenant import NamedPlan
from scheduler.traffic_class import CLASSES
from tercet.garbage import settle
from tercet.load.figures import percentile

H200 = StepCost(4e-3, 25e-6, 40e-9)
CPU = StepCost(20e-3, 400e-6, 2e-6)
CHAT = Flow("chat", Lengths(300, 0.8, 2000), Lengths(150, 0.7, 600), 1.0, "interactive")
MIX = (
    dataclasses.replace(CHAT, share=6.0),
    Flow("retrieval", Lengths(2000, 0.4, 3500), Lengths(60, 0.5, 250), 3.0, "rag"),
    Flow("summaries", Lengths(2500, 0.3, 3000), Lengths(400, 0.4, 1000), 1.0, "batch"),
)
SMALL_MIX = (
    Flow("chat", Lengths(60, 0.6, 400), Lengths(40, 0.6, 160), 6.0, "interactive"),
    Flow("retrieval", Lengths(400, 0.4, 1500), Lengths(8, 0.4, 32), 3.0, "rag"),
    Flow("summaries", Lengths(400, 0.4, 1500), Lengths(64, 0.4, 200), 1.0, "batch"),
)
# Nothing is refused for the length of a queue.
BOUNDS = QueueBounds(1_000_000, 1_000_000_000)
INTERACTIVE_S = 1.0


@dataclass(frozen=True, slots=True)
class Case:
    """A mesh and who asks it."""

    name: str
    flows: tuple[Flow, ...]
    fleet: Fleet
    tenants: tuple[NamedPlan, ...] = ()
    requests: int = 2000

    def workload(self, load: float) -> Workload:
        """At a part of the estimated capacity."""
        rate = load * self.fleet.requests_per_second(self.flows)
        return Workload(self.requests, rate, self.flows, self.fleet.cost.base_s)


def _fleet(cost: StepCost, workers: int = 1, spread: float = 0.0, **info: int) -> Fleet:
    worker = {"block_size": 64, "num_blocks": 8192, "max_num_seqs": 256, "max_num_batched_tokens": 8192}
    return Fleet(workers, simulated_info(**{**worker, "max_model_len": 8192, **info}), cost, spread, 0.25e-3, True)


def _tenants(count: int) -> tuple[tuple[Flow, ...], tuple[NamedPlan, ...]]:
    """So many, the first of which asks for as much as all others together."""
    names = [f"tenant-{index}" for index in range(count)]
    flows = [
        dataclasses.replace(CHAT, name=name, tenant=name, share=count - 1.0 if name == names[0] else 1.0)
        for name in names
    ]
    return tuple(flows), tuple(NamedPlan(name) for name in names)


_SMALL = {"num_blocks": 2048, "max_num_seqs": 32, "max_num_batched_tokens": 512, "block_size": 16}
CASES = (
    Case("chat", (CHAT,), _fleet(H200)),
    Case("mix", MIX, _fleet(H200)),
    Case("four workers", MIX, _fleet(H200, 4, 0.1), requests=4000),
    Case("tenants", _tenants(12)[0], _fleet(H200), _tenants(12)[1]),
    Case("few slots", (CHAT,), _fleet(H200, max_num_seqs=16)),
    Case("few blocks", (CHAT,), _fleet(H200, num_blocks=160)),
    Case("prefixes", (dataclasses.replace(CHAT, prompt=Lengths(1500, 0.5, 3000), prefix_ratio=0.6, prefix_tokens=1000,
                                          prefixes=8),), _fleet(H200)),
    Case("bursts", (dataclasses.replace(CHAT, arrivals=Arrivals.BURST, burst_size=40),), _fleet(H200)),
    Case("cpu", SMALL_MIX, _fleet(CPU, **_SMALL), requests=1000),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that got its first token. Seconds to it, and by forecast; what it was believed to wait for."""

    target_s: float
    actual_s: float
    forecast_s: float
    waited_for: str
    to_be_refused: bool

    @property
    def error(self) -> float:
        """Of the forecast, as a part of the actual time."""
        return abs(self.forecast_s / self.actual_s - 1.0)

    @property
    def late(self) -> bool:
        """Whether it missed its class's target."""
        return self.actual_s > self.target_s


class WatchedMesh(CapacityMesh):
    """Keeps what the log says of requests whose first token was forecast."""

    seen: list[Seen]

    def _act(self, action: Action) -> None:
        if isinstance(action, Log) and action.event == "request_finished":
            self._note(action.fields)
        super()._act(action)

    def _note(self, fields: Mapping[str, Any]) -> None:
        if fields["first_token_ms"] is None or fields["forecast_ms"] is None:
            return
        target = CLASSES[fields["traffic_class"]].ttft
        self.seen.append(
            Seen(
                target_s=inf if target is None else target.seconds,
                actual_s=max(fields["first_token_ms"], 1e-3) / 1e3,
                forecast_s=fields["forecast_ms"] / 1e3,
                waited_for=fields["waited_for"],
                to_be_refused=fields["to_be_refused"],
            )
        )


def run(case: Case, load: float, mode: AdmissionMode, seed: int) -> WatchedMesh:
    """`load` is a part of the estimated capacity."""
    workload = case.workload(load)
    mesh = WatchedMesh(case.fleet, workload, Policy(0, 0), BOUNDS, seed, tenants=case.tenants, admission_mode=mode)
    mesh.seen = []
    mesh.run()
    mesh.result()
    return mesh


def figures(shadow: WatchedMesh, enforced: WatchedMesh) -> dict[str, Any]:
    """What came of the same requests in both modes; None where there is nothing to divide by."""
    promised = [each for each in shadow.seen if each.target_s < inf]
    refused = [each for each in promised if each.to_be_refused]
    wrong = sum(not each.late for each in refused)
    accepted = [each for each in enforced.seen if each.target_s < inf]
    chat = sorted(each.actual_s for each in accepted if each.target_s == INTERACTIVE_S)
    offered = sum(flow.offered for flow in enforced.tally.flows.values())
    errors = {
        kind: _median([each.error for each in enforced.seen if each.waited_for == kind])
        for kind in ("idle", "prefill", "place")
    }
    return {
        "error": _median([each.error for each in enforced.seen]),
        "error_by_wait": errors,
        "error_shadow": _median([each.error for each in shadow.seen]),
        "accepted": sum(flow.accepted for flow in enforced.tally.flows.values()) / offered,
        "qualified": sum(flow.qualified for flow in enforced.tally.flows.values()) / offered,
        "qualified_shadow": sum(flow.qualified for flow in shadow.tally.flows.values()) / offered,
        "to_be_refused": len(refused) / len(promised) if promised else None,
        "wrong_of_refused": wrong / len(refused) if refused else None,
        "wrong_of_all": wrong / len(promised) if promised else None,
        "late": sum(each.late for each in accepted) / len(accepted) if accepted else None,
        "interactive_p95_ms": percentile(chat, 95) * 1e3 if chat else None,
    }


def _median(values: list[float]) -> float | None:
    return median(values) if values else None


@click.command()
@click.option("--only", default="", help="names of cases, with commas between; default: all")
@click.option("--loads", default="0.3,0.9,1.2,2,4", show_default=True, help="parts of the estimated capacity")
@click.option("--seeds", default="11", show_default=True, help="one run for each")
@click.option("--json", "out", type=click.Path(path_type=Path, dir_okay=False), default=None, help="file to write")
def main(only: str, loads: str, seeds: str, out: Path | None) -> None:
    """Runs the cases and prints a line for each."""
    settle()
    print(_line(HEAD))
    rows = []
    for case in CASES:
        if only and case.name not in only.split(","):
            continue
        for load in map(float, loads.split(",")):
            for seed in map(int, seeds.split(",")):
                both = (run(case, load, mode, seed) for mode in (AdmissionMode.SHADOW, AdmissionMode.ENFORCE))
                found = figures(*both)
                rows.append({"case": case.name, "load": load, "seed": seed, **found})
                print(_line([case.name, f"{load:g}", *_cells(found)]), flush=True)
                if out is not None:
                    out.write_text(json.dumps(rows, indent=1))


HEAD = ["case", "load", "error", "idle", "prefill", "place", "shadow", "accepted", "qualified", "shadow", "to refuse",
        "wrong", "of all", "late", "p95 ms"]  # fmt: skip


def _cells(found: dict[str, Any]) -> list[str]:
    by_wait = found["error_by_wait"]
    parts = [
        found["error"], by_wait["idle"], by_wait["prefill"], by_wait["place"], found["error_shadow"], found["accepted"],
        found["qualified"], found["qualified_shadow"], found["to_be_refused"], found["wrong_of_refused"],
        found["wrong_of_all"], found["late"],
    ]  # fmt: skip
    p95 = found["interactive_p95_ms"]
    return ["-" if part is None else f"{part:.1%}" for part in parts] + ["-" if p95 is None else f"{p95:.0f}"]


def _line(cells: Sequence[str]) -> str:
    return f"{cells[0]:<13}" + "".join(f"{cell:>10}" for cell in cells[1:])


if __name__ == "__main__":
    main()
