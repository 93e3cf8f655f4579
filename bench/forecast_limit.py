"""How good a forecast of the first token can be at all: the error of one that knows all but what chance has not drawn.

    python -m bench.forecast_limit --only "few slots,few blocks" --loads 2,4

Every so many requests that are let in the run is split. In each of `--futures` copies of the whole mesh, scheduler and
workers as they are, what nobody can know is drawn anew, by the same odds: how long each output becomes, given how long
it is by now, and who comes later, when and with what. The median of the times to the request's first token in these
futures is the best forecast there is: it knows every rule and every distribution, but no draw. `limit` is its error,
`ours` that of what clients are told, of the same requests; both are medians of parts of the actual time. Who comes in a
drawn future shares no prefix with those before, so that a mesh that lives on shared prefixes looks slower there.

Copies are processes, by os.fork.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from statistics import median
from typing import Any

import click

from bench.forecast import BOUNDS, CASES, Case
from scheduler.actions import Accepted, Action, ToGateway, TokenBatch
from scheduler.policy import Policy
from scheduler.simulator.capacity import MODEL, CapacityMesh
from scheduler.simulator.workload import Arrival, Flow, Requests
from tercet.garbage import settle

# Keys of those who come in a drawn future begin here.
LATER = 1 << 24
# Draws of an output's length until one is longer than the output is.
MAX_DRAWS = 10_000


class _Later(Requests):
    """Requests from a moment on."""

    begin_s: float

    def _arrival(self, key: int, at: float, flow: Flow, asked: Any) -> Arrival:
        return super()._arrival(LATER + key, self.begin_s + at, flow, asked)


@dataclass(slots=True)
class Sample:
    """A request that is looked at. Seconds: when it came, what it was told, the median of its futures, what came."""

    came_at: float
    told_s: float
    futures_s: float
    actual_s: float = 0.0


class SplitMesh(CapacityMesh):
    """Splits at every `every`th request that is let in with a forecast. `samples` are by their sequences."""

    def __init__(self, case: Case, load: float, seed: int, every: int, futures: int) -> None:
        self._case, self._load, self._every, self._futures = case, load, every, futures
        self._accepted = 0
        # By the seeds of outputs.
        self._flows: dict[int, Flow] = {}
        self.samples: dict[int, Sample] = {}
        # In a copy: the sequence whose first token ends it, and the pipe on which that is told.
        self._watched: tuple[int, int] | None = None
        super().__init__(case.fleet, case.workload(load), Policy(0, 0), BOUNDS, seed, tenants=case.tenants)

    def _arrive(self, arrival: Arrival) -> None:
        first = arrival.submission.sampling.seed
        self._flows.update((first + index, arrival.flow) for index in range(arrival.submission.n))
        super()._arrive(arrival)

    def _act(self, action: Action) -> None:
        super()._act(action)
        message = action.message if isinstance(action, ToGateway) else None
        if isinstance(message, TokenBatch):
            self._note(message)
        elif isinstance(message, Accepted) and message.forecast_s is not None and self._watched is None:
            self._accepted += 1
            if self._accepted % self._every == 0:
                self._split(message.sequence_ids[0], message.forecast_s)

    def _note(self, batch: TokenBatch) -> None:
        for sequence_id in batch.sequence_ids:
            if self._watched is not None and sequence_id == self._watched[0]:
                os.write(self._watched[1], repr(self.now).encode())
                os._exit(0)
            sample = self.samples.get(sequence_id)
            if sample is not None and not sample.actual_s:
                sample.actual_s = self.now - sample.came_at

    def _split(self, sequence_id: int, told_s: float) -> None:
        moments = []
        for index in range(self._futures):
            reading, writing = os.pipe()
            copy = os.fork()
            if not copy:
                self._watched = sequence_id, writing
                self._draw(random.Random(f"{self.now} {index}"))
                return
            os.close(writing)
            with os.fdopen(reading) as pipe:
                moments.append(float(pipe.read()))
            os.waitpid(copy, 0)
        self.samples[sequence_id] = Sample(self.now, told_s, median(moments) - self.now)

    def _draw(self, rng: random.Random) -> None:
        """Makes a future of its own, but for who comes next: that one is on the agenda."""
        lengths = self.requests.lengths
        held = {each.new.sampling.seed: len(each.tokens) for worker in self.workers.values()
                for each in worker.sequences.values()}  # fmt: skip
        for sequence in self.core._mesh.sequences.values():
            seed, prompt = sequence.sampling.seed, sequence.prompt_length
            flow, length = self._flows[seed], max(held.get(seed, 0), len(sequence.token_ids))
            drawn = (prompt + min(flow.output.draw(rng), flow.most_tokens) for _ in range(MAX_DRAWS))
            lengths[seed] = next((each for each in drawn if each > length), lengths[seed])
        later = _Later(self._case.workload(self._load), rng.getrandbits(32), model=MODEL,
                       max_model_len=self._case.fleet.info.max_model_len)  # fmt: skip
        later.begin_s, later.lengths = self.now, lengths
        self._arrivals = iter(later)


def run(case: Case, load: float, seed: int, every: int, futures: int) -> list[Sample]:
    """What became of the requests that were looked at; `load` is a part of the estimated capacity."""
    mesh = SplitMesh(case, load, seed, every, futures)
    mesh.run()
    return [each for each in mesh.samples.values() if each.actual_s]


@click.command()
@click.option("--only", default="", help="names of cases of bench.forecast, with commas between; default: all")
@click.option("--loads", default="2,4", show_default=True, help="parts of the estimated capacity")
@click.option("--seed", default=11, show_default=True)
@click.option("--every", default=10, show_default=True, help="requests from one that is looked at to the next")
@click.option("--futures", default=9, show_default=True, help="copies for each of them")
def main(only: str, loads: str, seed: int, every: int, futures: int) -> None:
    """Prints a line for each run."""
    settle()
    print(f"{'case':<13}{'load':>6}{'requests':>10}{'limit':>8}{'ours':>8}")
    for case in CASES:
        if only and case.name not in only.split(","):
            continue
        for load in map(float, loads.split(",")):
            samples = run(case, load, seed, every, futures)
            limit, ours = (
                median(abs(forecast / each.actual_s - 1.0) for forecast, each in pairs)
                for pairs in (
                    [(each.futures_s, each) for each in samples],
                    [(each.told_s, each) for each in samples],
                )
            )
            print(f"{case.name:<13}{load:>6g}{len(samples):>10}{limit:>8.1%}{ours:>8.1%}", flush=True)


if __name__ == "__main__":
    main()
