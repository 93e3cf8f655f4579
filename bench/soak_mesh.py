"""A mesh under mixed load that is broken again and again: whether anything leaks, hangs, is lost or told wrong.

    python -m bench.soak_mesh --minutes 30

Clients of all classes ask short and long questions, read, cancel, leave, dawdle, or give too little time. In the first
part nobody is killed but worker-2, so that the others grow old: their memory, open files and threads must not grow
(bench/vitals.py has the bounds). Then everybody is killed. At the end nothing may be left anywhere, and the ledger must
say what the clients got.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click

from bench.books import Books
from bench.fault_cells import BOOKS_S
from bench.fault_deeds import FAULTS, do
from bench.fault_mesh import SHAPE, STARTED_S, FaultMesh
from bench.soak_clients import Clients, Told, questions
from bench.vitals import Trend, Vitals, read_vitals, trend
from tercet.ledger.row import Outcome

SAMPLE_S = 3.0
# Part of the time in which processes grow old.
OLD_PART = 0.75
# A gateway that is killed may not have written what happened so shortly before.
UNWRITTEN_S = 3.0
SETTINGS = {
    # Reached within a minute: what grows after that leaks.
    "TERCET_SCHEDULER_PLAN_LOG_ROUNDS": "2000",
    # Who dawdles falls behind by so many.
    "TERCET_GATEWAY_MAX_STREAM_TOKENS": "64",
    "TERCET_WORKER_SWAP_SPACE": "2MiB",
}


@dataclass(slots=True)
class Verdict:
    """What must not be, in `problems`, and figures."""

    minutes: float
    ends: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    trends: dict[str, Trend] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Soak:
    """One run on a mesh."""

    def __init__(self, mesh: FaultMesh, rng: random.Random, fault_every_s: float) -> None:
        self._mesh = mesh
        self._rng = rng
        self._fault_every_s = fault_every_s
        self._clients = Clients(mesh.address, questions(SHAPE.vocab_size, rng), rng)
        self._began = time.monotonic()
        # Of the first part, by process.
        self._vitals: defaultdict[str, list[Vitals]] = defaultdict(list)
        self._faults: Counter[str] = Counter()
        self._killed_at: list[float] = []
        self._problems: list[str] = []

    async def run(self, minutes: float, num_clients: int) -> Verdict:
        """Load and faults for so long, then silence, and the verdict."""
        load = asyncio.create_task(self._clients.run(num_clients))
        old_s = minutes * 60 * OLD_PART
        sampler = asyncio.create_task(self._sample(old_s))
        await self._break(old_s, everybody=False)
        await sampler
        await self._break(minutes * 60, everybody=True)
        self._clients.stop()
        await load
        await self._look_at_rest()
        await self._look_at_books()
        await self._stop_workers()
        return self._verdict(minutes)

    async def _sample(self, until_s: float) -> None:
        while (at := time.monotonic() - self._began) < until_s:
            for name in self._mesh.names:
                vitals = read_vitals(self._mesh.pid(name), at)
                if vitals is not None:
                    self._vitals[name].append(vitals)
            await asyncio.sleep(SAMPLE_S)

    async def _break(self, until_s: float, *, everybody: bool) -> None:
        """One fault after the other, each on a mesh that is whole."""
        while True:
            pause = self._fault_every_s * self._rng.uniform(0.5, 1.5)
            if time.monotonic() - self._began + pause > until_s:
                await asyncio.sleep(max(0.0, until_s - (time.monotonic() - self._began)))
                return
            await asyncio.sleep(pause)
            fault, name = self._rng.choice(FAULTS), self._rng.choice(self._mesh.names)
            if fault in ("kill", "stop") and not everybody:
                name = self._mesh.workers[-1]
            self._faults[f"{fault} {name}"] += 1
            if name == "gateway" and fault == "kill":
                self._killed_at.append(time.monotonic())
            await do(self._mesh, name, fault)
            await self._wait_whole(f"{fault} {name}")

    async def _wait_whole(self, fault: str) -> None:
        try:
            await asyncio.to_thread(self._mesh.wait_for, self._mesh.whole, f"whole again after {fault}", STARTED_S)
        except TimeoutError as error:
            self._problems.append(str(error))
        self._problems += [f"after {fault}: {line}" for line in self._mesh.complaints()]

    async def _look_at_rest(self) -> None:
        try:
            await asyncio.to_thread(self._mesh.wait_for, self._mesh.at_rest, "nothing is left", STARTED_S)
        except TimeoutError as error:
            self._problems.append(str(error))

    async def _look_at_books(self) -> None:
        """One row for each request that was served, which says what its client got."""
        told = self._clients.memory.told
        with contextlib.closing(Books(self._mesh.database.where)) as books:
            entries = await asyncio.to_thread(books.closed, [each.request_id for each in told], BOOKS_S)
        for each in told:
            rows = entries.get(each.request_id, ())
            if len(rows) > 1 or any(row.outcome is Outcome.OPEN for row in rows):
                self._problems.append(f"{each.request_id} has the rows {rows}")
            elif not rows:
                self._problems.append(f"{each.request_id}, {each.end}, has no row")
            elif each.end == "finished" and not self._died_with_gateway(each):
                said = (rows[0].outcome, rows[0].delivered_tokens)
                if said != (Outcome.COMPLETED, each.num_tokens):
                    self._problems.append(f"{each.request_id} finished with {each.num_tokens} tokens: {rows[0]}")

    def _died_with_gateway(self, told: Told) -> bool:
        return any(at - UNWRITTEN_S <= told.ended_at <= at + UNWRITTEN_S for at in self._killed_at)

    async def _stop_workers(self) -> None:
        for name in self._mesh.workers:
            status, left = await asyncio.to_thread(self._mesh.stop_worker, name)
            if status or left:
                self._problems.append(f"{name} had {left} sequences of nobody, and ended with {status}")

    def _verdict(self, minutes: float) -> Verdict:
        memory = self._clients.memory
        verdict = Verdict(minutes, dict(memory.ends), memory.tokens, dict(self._faults), problems=self._problems)
        verdict.problems += [f"another answer than before: {each}" for each in memory.mismatches]
        verdict.problems += [f"not explained: {each}" for each in memory.strange]
        for name in self._mesh.names[:-1]:
            found = trend(self._vitals[name])
            if len({each.pid for each in self._vitals[name]}) > 1:
                verdict.problems.append(f"{name} did not grow old: it ended by itself")
            elif found is not None:
                verdict.trends[name] = found
                if not found.flat:
                    verdict.problems.append(f"{name} grows: {found}")
        return verdict


@click.command()
@click.option("--minutes", type=click.FloatRange(0.5), default=30.0, show_default=True)
@click.option("--clients", "num_clients", type=click.IntRange(1), default=24, show_default=True)
@click.option("--fault-every", type=click.FloatRange(1.0), default=20.0, show_default=True, help="seconds, on the mean")
@click.option("--seed", type=int, default=0, show_default=True, help="of load and faults")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="JSON file to write")
@click.option("--logs", type=click.Path(path_type=Path), default=None, help="folder that keeps logs and ledger")
def main(minutes: float, num_clients: int, fault_every: float, seed: int, out: Path | None, logs: Path | None) -> None:
    """Prints the verdict; exits with 1 if something does not hold."""
    folder = contextlib.nullcontext(str(logs)) if logs is not None else tempfile.TemporaryDirectory()
    with folder as name, FaultMesh(Path(name), settings=SETTINGS) as mesh:
        soak = Soak(mesh, random.Random(seed), fault_every)
        verdict = asyncio.run(soak.run(minutes, num_clients))
    if out is not None:
        out.write_text(json.dumps(asdict(verdict), indent=1))
    show(verdict)
    raise SystemExit(bool(verdict.problems))


def show(verdict: Verdict) -> None:
    """For people."""
    print(f"{verdict.minutes:g} minutes, {sum(verdict.ends.values()):,} requests, {verdict.tokens:,} tokens")
    print("ends:   " + ", ".join(f"{count:,} {end}" for end, count in sorted(verdict.ends.items())))
    print("faults: " + ", ".join(f"{count} {fault}" for fault, count in sorted(verdict.faults.items())))
    for name, found in verdict.trends.items():
        flat = "flat" if found.flat else "GROWS"
        print(
            f"{name}: {found.rss / (1 << 20):.0f} MiB, in {found.seconds:.0f} s {found.rss_growth / (1 << 20):+.1f} "
            f"MiB, {found.files_growth:+.1f} files, {found.threads_growth:+.1f} threads: {flat}"
        )
    for problem in verdict.problems:
        print(f"PROBLEM {problem}")
    print("nothing leaks" if not verdict.problems else f"{len(verdict.problems)} problems")


if __name__ == "__main__":
    main()
