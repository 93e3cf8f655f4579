"""What a flood of one tenant costs the first tokens of another one, on a virtual clock.

    python -m bench.flood
    python -m bench.flood --floods 3 --prompts chat --json flood.json

The real scheduler with a simulated worker of an H200's speed. One tenant asks for 30 % of the capacity, alone and
beside another one of the same weight and class that asks for so many times the capacity. The *floor* is what the steps
themselves force: the same requests in steps in which as many decode as did, and no prompt of the flood is computed.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from bench.overload_study import BLOCK_SIZE, COST, MESSAGE_DELAY_S, NUM_BLOCKS
from scheduler.actions import Accepted, Action, NewSequence, ToGateway, TokenBatch, ToWorker
from scheduler.admission import QueueBounds
from scheduler.policy import Policy
from scheduler.simulator.capacity import CapacityMesh, Fleet, simulated_info
from scheduler.simulator.worker import SimulatedWorker
from scheduler.simulator.workload import Arrival, Flow, Lengths, Workload
from scheduler.tenant import NamedPlan
from tercet.load.figures import percentile

Figures = dict[str, Any]

OWN, FLOOD = "own", "flood"
# Of the capacity, what the tenant asks for whose first tokens are looked at.
OWN_LOAD = 0.3
# As in bench/workload.py; and prompts that fill a step by themselves.
CHAT = Flow(OWN, Lengths(221, 1.0, 1024), Lengths(193, 0.85, 1024), OWN_LOAD, tenant=OWN)
LONG = replace(CHAT, prompt=Lengths(2000, 0.3, 4000))
PROMPTS = {"chat": CHAT, "long": LONG}
POLICY = Policy(num_steps=0, max_prefill_tokens=0)
BOUNDS = QueueBounds(1024, 4_000_000)
FLEET = Fleet(
    1,
    simulated_info(
        block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=8192
    ),
    COST,
    0.0,
    MESSAGE_DELAY_S,
    caching=True,
)


@dataclass(slots=True)
class Wait:
    """A request of the tenant that is looked at; moments in seconds."""

    arrived_at: float
    prompt: int
    # When its prompt was sent to the worker, and when its first token was here.
    started_at: float = math.nan
    first_token_at: float = math.nan


@dataclass(slots=True)
class Step:
    """A step of the worker: its seconds, and what it would have taken without prompts."""

    begun_at: float
    seconds: float
    decode_seconds: float


@dataclass(slots=True)
class Count:
    """What there was of it when the load began to count, and when it ended."""

    at: float = 0.0
    tokens: int = 0


@dataclass(slots=True)
class Notes:
    """What is noted beside the tally."""

    waits: dict[int, Wait] = field(default_factory=dict)
    by_sequence: dict[int, Wait] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    prefilled: int = 0
    first: Count = field(default_factory=Count)
    last: Count = field(default_factory=Count)


class FloodMesh(CapacityMesh):
    """A capacity run that notes of each request of one tenant how long it waited, and for what."""

    def __init__(self, flows: tuple[Flow, ...], requests: int, rate: float, seed: int, policy: Policy = POLICY) -> None:
        self.notes = Notes()
        self._requests = requests
        tenants = [NamedPlan(flow.tenant) for flow in flows]
        super().__init__(FLEET, Workload(requests, rate, flows, COST.base_s), policy, BOUNDS, seed, tenants)

    def _arrive(self, arrival: Arrival) -> None:
        key, notes = arrival.submission.request_key, self.notes
        if arrival.flow.name == OWN:
            notes.waits[key] = Wait(self.now, len(arrival.submission.prompt_token_ids))
        if key == self._requests // 4 + 1:
            notes.first = self._count()
        notes.last = self._count()
        super()._arrive(arrival)

    def _count(self) -> Count:
        return Count(self.now, self.tally.tokens + self.notes.prefilled)

    def _act(self, action: Action) -> None:
        message = action.message if isinstance(action, ToGateway) else None
        if isinstance(message, Accepted) and message.request_key in self.notes.waits:
            self.notes.by_sequence[message.sequence_ids[0]] = self.notes.waits[message.request_key]
        elif isinstance(message, TokenBatch):
            for sequence_id in self.notes.by_sequence.keys() & set(message.sequence_ids):
                self.notes.by_sequence.pop(sequence_id).first_token_at = self.now
        super()._act(action)

    def _send_bundles(self, actions: list[Action]) -> None:
        super()._send_bundles(actions)
        for action in actions:
            if isinstance(action, ToWorker) and isinstance(action.command, NewSequence):
                wait = self.notes.by_sequence.get(action.command.sequence_id)
                if wait is not None and math.isnan(wait.started_at):
                    wait.started_at = self.now

    def _boundary(self, worker: SimulatedWorker) -> None:
        running = worker.busy
        super()._boundary(worker)
        if worker.busy and not running:
            notes, prompts = self.notes, worker.tokens_prefilled - self.notes.prefilled
            notes.prefilled = worker.tokens_prefilled
            notes.steps.append(Step(self.now, worker.step_seconds, worker.step_seconds - prompts * COST.token_s))


def measure(own: Flow, flood: Flow | None, times: float, seconds: float, seed: int, policy: Policy = POLICY) -> Figures:
    """First tokens of `own`'s requests beside `times` the capacity of `flood`'s, for so many seconds of a load.
    Counted are those that arrive when a quarter of all has. `start_ms` is how long they waited for a place."""
    asked = [own] if flood is None else [own, replace(flood, name=FLOOD, tenant=FLOOD, share=times)]
    # Each asks for a part of the capacity for what it asks for.
    flows = tuple(replace(flow, share=flow.share * FLEET.requests_per_second((flow,))) for flow in asked)
    rate = sum(flow.share for flow in flows)
    mesh = FloodMesh(flows, round(rate * seconds), rate, seed, policy)
    mesh.run()
    result, notes = mesh.result(), mesh.notes
    since, until = notes.first.at, notes.last.at
    served = [wait for wait in notes.waits.values() if not math.isnan(wait.first_token_at)]
    least_s = floors(served, notes.steps, policy.max_mixed_step_s)
    waits = [(wait, floor_s) for wait, floor_s in zip(served, least_s, strict=True) if wait.arrived_at >= since]
    return {
        "first_token_ms": _ms([wait.first_token_at - wait.arrived_at for wait, _ in waits]),
        "floor_ms": _ms([floor_s for _, floor_s in waits]),
        "start_ms": _ms([wait.started_at - wait.arrived_at for wait, _ in waits]),
        "step_ms": _ms([step.seconds for step in notes.steps if since <= step.begun_at <= until]),
        "tokens_per_second": (notes.last.tokens - notes.first.tokens) / (until - since),
        "flows": {name: tally.report(result.loaded_seconds) for name, tally in result.tally.flows.items()},
        "preemptions": result.tally.preemptions,
    }


def floors(waits: Sequence[Wait], steps: Sequence[Step], most_s: float) -> list[float]:
    """Seconds to the first token of each, in order of arrival, if they had the worker's steps for themselves: while it
    was busy these take what they took without prompts, and with theirs at most `most_s`."""
    begun = [step.begun_at for step in steps]
    left = deque((wait.arrived_at + MESSAGE_DELAY_S, wait.prompt) for wait in waits)
    found: list[float] = []
    now = 0.0
    while left:
        place = bisect_right(begun, now) - 1
        busy = place >= 0 and now < begun[place] + steps[place].seconds + 2 * MESSAGE_DELAY_S
        seconds = steps[place].decode_seconds if busy else COST.base_s
        if not busy:
            now = max(now, left[0][0])
        room = int((most_s - seconds) / COST.token_s) if busy else FLEET.info.max_num_batched_tokens
        done = 0
        while left and left[0][0] <= now and room:
            arrived_at, prompt = left.popleft()
            count = min(prompt, room)
            room -= count
            seconds += count * COST.token_s
            if count < prompt:
                left.appendleft((arrived_at, prompt - count))
            else:
                done += 1
        now += seconds
        found += [now + MESSAGE_DELAY_S] * done
    return [moment - wait.arrived_at for moment, wait in zip(found, waits, strict=True)]


def _ms(seconds: list[float]) -> dict[str, float]:
    return {f"p{percent}": 1e3 * percentile(seconds, percent) for percent in (50, 95)}


def runs(prompts: list[str], floods: list[float], seconds: float, seed: int) -> Iterator[tuple[str, Figures]]:
    """Each kind of prompts alone, then beside floods of either kind."""
    for name in prompts:
        own = PROMPTS[name]
        yield f"{name}, alone", measure(own, None, 0.0, seconds, seed)
        for other in prompts:
            for times in floods:
                yield f"{name}, beside {times:g} x {other}", measure(own, PROMPTS[other], times, seconds, seed)


@click.command()
@click.option("--prompts", default=",".join(PROMPTS), show_default=True, help="kinds of requests, of either tenant")
@click.option("--floods", default="1,3,10", show_default=True, help="what the flood asks for, in capacities")
@click.option("--seconds", default=30.0, show_default=True, help="how long requests arrive, of the virtual clock")
@click.option("--seed", default=1, show_default=True, help="of the requests")
@click.option("--json", "out", type=click.Path(path_type=Path, dir_okay=False), default=None, help="file to write")
def main(prompts: str, floods: str, seconds: float, seed: int, out: Path | None) -> None:
    """Runs each combination and prints its first tokens in milliseconds."""
    result: dict[str, Figures] = {}
    times = [float(each) for each in floods.split(",")]
    for name, figures in runs(prompts.split(","), times, seconds, seed):
        result[name] = figures
        print(line(name, figures), flush=True)
        if out is not None:
            out.write_text(json.dumps(result, indent=1))


def line(name: str, figures: Figures) -> str:
    """A run as a line of a table."""
    times = ", ".join(
        f"{what} {figures[key]['p50']:.1f} {figures[key]['p95']:.1f}"
        for what, key in (
            ("first", "first_token_ms"),
            ("floor", "floor_ms"),
            ("start", "start_ms"),
            ("step", "step_ms"),
        )
    )
    flows = ", ".join(f"{flow['accepted']}/{flow['offered']} {name}" for name, flow in figures["flows"].items())
    return f"{name:<24} {times}; {figures['tokens_per_second']:,.0f} tokens/s; accepted {flows}"


if __name__ == "__main__":
    main()
