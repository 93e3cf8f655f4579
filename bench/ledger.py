"""What keeping a ledger costs those who serve, and how long clients wait for their row to be safe.

    python -m bench.ledger
    python -m bench.ledger --rates 50,1000 --seconds 20 --database postgresql+psycopg://user@host/name

Requests that come when they are due are opened, get 64 tokens, and are closed, without gRPC and without a mesh. For
each rate: the event loop's own time for a request, with a ledger over without one; what the writer's thread takes for
one beside that; how long `open` takes until the row is in the journal, and how long until it is in the database (50 %,
99 %, most); and rows in a transaction. The database is a file in the folder for temporary files, or what is given; the
journal is in that folder. First, many at once, what the calls themselves take of the event loop, with a database that
takes no time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from gateway.books import Books, Ending
from gateway.sequence_end import Account, EndReason, SequenceEnd
from gateway.stages import Stage, StageClock
from gateway.stream import Stream
from gateway.validate import GenerationRequest
from tercet.ledger.ledger import Ledger
from tercet.ledger.row import Outcome, Refusals, Row, Targets
from tercet.load.figures import percentile
from tercet.sections import LedgerSettings

TOKENS = 64
RUNS_S = 0.5
REQUEST = cast(
    GenerationRequest,
    SimpleNamespace(model=SimpleNamespace(name="model", revision="revision"), n=1, traffic_class="interactive"),
)
END = SequenceEnd(EndReason.LENGTH, Account(0, 4, 4, 0.001, TOKENS, 0.05))


class CountingLedger(Ledger):
    """Counts its transactions and rows, and notes when an open one was there."""

    def __init__(self, where: str) -> None:
        super().__init__(where, time.time)
        self.transactions = self.rows = 0
        self.opened_at: dict[str, float] = {}

    def write(self, instance: str, rows: Sequence[Row], refused: Sequence[Refusals]) -> None:
        super().write(instance, rows, refused)
        now = time.perf_counter()
        self.transactions += 1
        self.rows += len(rows)
        self.opened_at.update((row.request_id, now) for row in rows if row.outcome is Outcome.OPEN)


class NoDatabase:
    """Takes everything at once."""

    def create(self) -> None:
        """There is nothing to make."""

    def write(self, _instance: str, _rows: Sequence[Row], _refused: Sequence[Refusals]) -> None:
        """They are as good as written."""

    def check(self, _limit_s: float) -> bool:
        return True

    def beat(self, _instance: str) -> int:
        return 0

    def end(self, _instance: str) -> int:
        return 0

    def forget(self, _days: float) -> int:
        return 0

    def close(self) -> None:
        """There is nothing to close."""


class Tokens:
    """An output of which only the count of tokens matters."""

    finish = None
    num_ready = num_tokens = 0

    def push(self, _token_id: int, _logprobs: None = None) -> None:
        self.num_tokens += 1

    def end(self, reason: EndReason, _stop_token_id: int | None) -> None:
        self.finish = cast(Any, reason)


@dataclass(slots=True)
class Opened:
    """A request: when it was accepted, and when its row was in the journal, both in seconds of one clock."""

    accepted_at: float
    journaled_at: float


async def serve_one(books: Books, number: int, opened: dict[str, Opened], runs_s: float) -> None:
    """One request as its books see it: accepted, `runs_s` of tokens, over."""
    arrived_at = time.monotonic()
    stages = StageClock(time.monotonic, arrived_at)
    request_id = f"request-{number}"
    entry = books.enter(REQUEST, request_id, "tenant")
    stream = Stream([cast(Any, Tokens())], max_tokens_held=10**6, clock=time.monotonic)
    stream.accept(0, None, Targets("interactive", 1.0, 0.2))
    for stage in Stage:
        stages.begin(stage)
    began_at = time.perf_counter()
    entry.open(100, stream.targets)
    opened[request_id] = Opened(began_at, time.perf_counter())
    await asyncio.sleep(runs_s)
    for token_id in range(TOKENS):
        stream.push(0, token_id)
    stream.end(0, END)
    ending = Ending(arrived_at, time.monotonic(), 100, TOKENS, stream.cancels, stages)
    entry.close(Outcome.COMPLETED, "length", stream, ending)


async def offer(books: Books, rate: float, seconds: float) -> tuple[float, float, dict[str, Opened]]:
    """Seconds of CPU that the loop's thread and the other threads took for the requests, and when they were opened."""
    rng, opened = random.Random(1), dict[str, Opened]()
    await books.start()
    tasks: list[asyncio.Task[None]] = []
    due = time.perf_counter()
    end_at = due + seconds
    began, began_all = time.thread_time(), time.process_time()
    while (due := due + rng.expovariate(rate)) < end_at:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(serve_one(books, len(tasks), opened, RUNS_S)))
    await asyncio.gather(*tasks)
    loop, whole = time.thread_time() - began, time.process_time() - began_all
    await books.stop()
    return loop, whole - loop, opened


async def rush(books: Books, rounds: int = 40, at_once: int = 250) -> float:
    """Microseconds of the loop's thread for a request."""
    await books.start()
    began = time.thread_time()
    for _ in range(rounds):
        await asyncio.gather(*(serve_one(books, number, {}, 0.0) for number in range(at_once)))
    took = time.thread_time() - began
    await books.stop()
    return took / (rounds * at_once) * 1e6


def measure(where: str, journals: Path, rate: float, seconds: float) -> dict[str, float]:
    """All figures of a rate."""
    settings = LedgerSettings(gpu_hour_price=2.0)
    without, _, _ = asyncio.run(offer(Books(None, settings, "none", ["interactive"]), rate, seconds))
    ledger = CountingLedger(where)
    books = Books((ledger, journals), settings, f"bench-{time.time_ns()}", ["interactive"])
    loop, writer, opened = asyncio.run(offer(books, rate, seconds))
    count, calls = len(opened), sorted(each.journaled_at - each.accepted_at for each in opened.values())
    written = sorted(at - opened[request_id].accepted_at for request_id, at in ledger.opened_at.items())
    return {
        "rate": rate,
        "requests": count,
        "loop_us": (loop - without) / count * 1e6,
        "writer_us": writer / count * 1e6,
        "open_p50_us": percentile(calls, 50) * 1e6,
        "open_p99_us": percentile(calls, 99) * 1e6,
        "open_most_us": calls[-1] * 1e6,
        "written_p50_ms": percentile(written, 50) * 1e3,
        "written_p99_ms": percentile(written, 99) * 1e3,
        "written_most_ms": written[-1] * 1e3,
        "rows_each": ledger.rows / ledger.transactions,
    }


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="10,50,200,1000", help="requests per second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--database", help="a file or URL; default: a file that is deleted behind it")
    parser.add_argument("--json", type=Path, help="writes the figures there")
    options = parser.parse_args()
    print(f"cores: {len(os.sched_getaffinity(0))}")
    settings = LedgerSettings()
    without = asyncio.run(rush(Books(None, settings, "none", ["interactive"])))
    figures = []
    with tempfile.TemporaryDirectory() as name:
        journals = Path(name) / "ledger.db"
        where = options.database or str(journals)
        calls_us = asyncio.run(rush(Books((NoDatabase(), journals), settings, "rush", ["interactive"]))) - without
        print(f"calls of the books: {calls_us:.0f} us a request")
        print(
            "requests/s  loop us  writer us  open p50 us  p99 us  most us  written p50 ms  p99 ms  most ms  rows each"
        )
        for rate in map(float, options.rates.split(",")):
            found = measure(where, journals, rate, options.seconds)
            figures.append(found)
            print(
                f"{rate:10.0f} {found['loop_us']:8.0f} {found['writer_us']:10.0f} {found['open_p50_us']:12.0f}"
                f" {found['open_p99_us']:7.0f} {found['open_most_us']:8.0f} {found['written_p50_ms']:15.1f}"
                f" {found['written_p99_ms']:7.1f} {found['written_most_ms']:8.1f} {found['rows_each']:10.1f}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps({"calls_us": calls_us, "rates": figures}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
