"""What planning many steps at once costs and saves, with real processes: the figures of docs/results.md.

    python -m bench.plans
    python -m bench.plans --part a,d --seconds 20 --json plans.json

Parts, each by itself: a. first tokens at low load; b. gaps between tokens; c. throughput, and what workers are idle;
d. how soon a plan is revoked; e. a round of the core, 1,024 sequences running and 10,000 waiting; f. tokens that one
scheduler carries; g. memory over a million sequences; h. prefix caching; i. refusals; j. the core's time for a token.
The model is the embedded one on the CPU; simulated workers (bench/simulated_worker.py) have steps of 2 ms, in f and j
of 10 ms.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import uvloop

from bench.plan_mesh import Simulated
from bench.plan_parts import first_tokens, prefix_caching, revocations, throughput, token_gaps
from bench.scheduler_cost import SEQUENCES, carried, memory, refusals, round_cost, token_cost
from tercet.garbage import settle

Figures = dict[str, Any]
SHORT, LONG = Simulated(2.0, token_us=10.0), Simulated(10.0, token_us=10.0)


def _first_tokens(seconds: float) -> Iterator[tuple[str, Figures]]:
    yield "a. first token, CPU model", uvloop.run(first_tokens(None, seconds))
    yield "a. first token, 2 ms steps", uvloop.run(first_tokens(SHORT, seconds / 2))


def _token_gaps(seconds: float) -> Iterator[tuple[str, Figures]]:
    yield "b. gaps, CPU model", uvloop.run(token_gaps(None, seconds, 3))
    yield "b. gaps, 10 ms steps", uvloop.run(token_gaps(LONG, seconds, 3))
    yield "b. gaps, 2 ms steps", uvloop.run(token_gaps(SHORT, seconds, 3))


def _throughput(seconds: float) -> Iterator[tuple[str, Figures]]:
    yield "c. throughput, 2 ms steps", uvloop.run(throughput(Simulated(2.0), seconds, 3))
    yield "c. throughput, CPU model", uvloop.run(throughput(None, seconds, 3))


def _revocations(seconds: float) -> Iterator[tuple[str, Figures]]:
    for step_ms in (2.0, 10.0):
        yield f"d. revocation, {step_ms:g} ms steps", uvloop.run(revocations(Simulated(step_ms), seconds / 2))


def _round_cost(_seconds: float) -> Iterator[tuple[str, Figures]]:
    for workers, num_steps, running, waiting, tenants in (
        (1, 0, 256, 0, 1),
        (1, 0, 1024, 10_000, 1),
        (1, 16, 1024, 10_000, 1),
        (4, 16, 1024, 10_000, 1),
        (1, 0, 1024, 10_000, 10),
        (1, 0, 1024, 10_000, 1000),
    ):
        load = f"{running:,} running on {workers} workers, {waiting:,} waiting of {tenants:,} tenants"
        yield (
            f"e. a round, {load}, plans of {num_steps or 'adaptive'} steps",
            _apart(round_cost, workers, num_steps, running, waiting, tenants),
        )


def _carried(seconds: float) -> Iterator[tuple[str, Figures]]:
    for mean_tokens in (1000, 300):
        yield f"f. carried, outputs of {mean_tokens} tokens", uvloop.run(carried(seconds / 2, mean_tokens))


def _memory(_seconds: float) -> Iterator[tuple[str, Figures]]:
    # In this process: what the other parts left is there before the first tenth.
    for row in memory(SEQUENCES):
        yield f"g. memory after {row['sequences']:,.0f} sequences", row


def _prefix_caching(seconds: float) -> Iterator[tuple[str, Figures]]:
    pairs = max(4, int(1.5 * seconds))
    for hits in (True, False):
        shared = "900 of 1,000 tokens" if hits else "nothing"
        yield f"h. prefix caching, {shared} shared", uvloop.run(prefix_caching(hits, pairs))


def _refusals(_seconds: float) -> Iterator[tuple[str, Figures]]:
    for length in (200, 8000):
        yield f"i. refusals of {length:,} tokens beside 1,024 running", _apart(refusals, length)


def _token_cost(_seconds: float) -> Iterator[tuple[str, Figures]]:
    for mean_tokens in (1000, 300):
        yield f"j. the core for a token, outputs of {mean_tokens} tokens", _apart(token_cost, mean_tokens)


PARTS: dict[str, Callable[[float], Iterator[tuple[str, Figures]]]] = {
    "a": _first_tokens,
    "b": _token_gaps,
    "c": _throughput,
    "d": _revocations,
    "e": _round_cost,
    "f": _carried,
    "g": _memory,
    "h": _prefix_caching,
    "i": _refusals,
    "j": _token_cost,
}


@click.command()
@click.option("--part", default=",".join(PARTS), show_default=True, help="which parts, by their letters")
@click.option("--seconds", default=20.0, show_default=True, help="about how long each of a, b, c, d and f measures")
@click.option("--json", "out", type=click.Path(path_type=Path, dir_okay=False), default=None, help="file to write")
def main(part: str, seconds: float, out: Path | None) -> None:
    """Runs the parts and prints each figure as it is known."""
    letters = [letter.strip() for letter in part.split(",")]
    if unknown := [letter for letter in letters if letter not in PARTS]:
        raise click.BadParameter(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    settle()
    result: dict[str, Figures] = {}
    for letter in letters:
        for name, figures in PARTS[letter](seconds):
            result[name] = figures
            print(f"{name}\n  {'  '.join(f'{key}={_short(value)}' for key, value in figures.items())}", flush=True)
            if out is not None:
                out.write_text(json.dumps(result, indent=1))


def _apart(work: Callable[..., Figures], *args: Any) -> Figures:
    """In a process of its own, where nothing else lives."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, args)


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_short, value))
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
