"""What thousands of cancels at once cost those who go on, and whether anything is left of what was cancelled.

    python -m bench.cancel_storm
    python -m bench.cancel_storm --requests 2000 --streams 8 --seconds 5 --json storm.json

Gateway with a ledger, scheduler, and a simulated worker; in a process of their own `streams` streams that go on, and
in another one `requests` that all go away in the same moment, some while they decode, most while they wait. The gaps of
the streams are measured alone, beside the others, and from the storm on; meanwhile somebody asks for the fleet again
and again. In the end no block may be in use, and each cancel has a row that says when it was acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import grpc.aio
import uvloop

from bench.plan_mesh import PlanMesh, Simulated, fixed, plan_mesh
from bench.refusal_load import GENERATE, LEAD_S, in_ms, started
from tercet import rpc
from tercet.cancel_times import times_by_origin
from tercet.client import AsyncClient, Delta
from tercet.ledger.cancellations import read_cancellations
from tercet.ledger.ledger import Ledger
from tercet.load.figures import gaps
from tercet.v1 import inference_pb2 as pb

Figures = dict[str, Any]
STEP = Simulated(20.0, token_us=10.0)
# Sequences of a step: enough for the streams and for some of the others.
SLOTS = 40
PROMPT = [7] * 32
MAX_TOKENS = 4000
# A connection takes a thousand calls at most.
CALLS_EACH = 500
# In which all of the others are to be accepted.
RAMP_S = 20.0
# Between two looks at the fleet.
LOOK_S = 0.05
# What is not gone by then stays.
PATIENCE_S = 20.0


@dataclass(slots=True)
class Looks:
    """What the fleet said, and when, on the host's monotonic clock."""

    # (asked, answered, requests that wait or run)
    answers: list[tuple[float, float, int]] = field(default_factory=list)

    def gone_after(self, since: float, left: int) -> float | None:
        """Milliseconds from `since` to the first answer by which at most `left` were there; None if there is none."""
        gone = (answered for asked, answered, there in self.answers if asked >= since and there <= left)
        return next(((answered - since) * 1e3 for answered in gone), None)


def steady(address: str, count: int, until: float) -> list[list[float]]:
    """When the deltas of so many streams came, until that moment."""
    return uvloop.run(_steady(address, count, until))


async def _steady(address: str, count: int, until: float) -> list[list[float]]:
    moments: list[list[float]] = [[] for _ in range(count)]
    async with AsyncClient(address) as client:

        async def read(noted: list[float]) -> None:
            async for event in client.generate(PROMPT, temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True):
                noted += [time.monotonic()] if isinstance(event, Delta) else []

        tasks = [asyncio.create_task(read(noted)) for noted in moments]
        await asyncio.sleep(until - time.monotonic())
        ended = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in ended:
            # A stream that was to last did not.
            task.result()
    return moments


def storm(address: str, count: int, begin: float, at: float) -> tuple[int, float]:
    """So many requests from `begin` on, all cancelled at the moment `at`. How many had been accepted by then, and how
    long it took to cancel them, in seconds."""
    return uvloop.run(_storm(address, count, begin, at))


async def _storm(address: str, count: int, begin: float, at: float) -> tuple[int, float]:
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=PROMPT))
    request.stop.max_tokens, request.stop.ignore_eos = MAX_TOKENS, True
    body = request.SerializeToString()
    channels = [
        grpc.aio.insecure_channel(address, options=[*rpc.CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)])
        for _ in range(-(-count // CALLS_EACH))
    ]
    accepted: set[int] = set()

    async def read(number: int, call: Any) -> None:
        while await call.read() is not grpc.aio.EOF:
            accepted.add(number)

    await asyncio.sleep(begin - time.monotonic())
    calls = [channels[number // CALLS_EACH].unary_stream(GENERATE)(body) for number in range(count)]
    readers = [asyncio.create_task(read(number, call)) for number, call in enumerate(calls)]
    await asyncio.sleep(at - time.monotonic())
    before, began = len(accepted), time.monotonic()
    for call in calls:
        call.cancel()
    took = time.monotonic() - began
    await asyncio.gather(*readers, return_exceptions=True)
    for channel in channels:
        await channel.close()
    return before, took


async def look(client: AsyncClient, looks: Looks) -> None:
    """Asks for the fleet until cancelled."""
    while True:
        asked = time.monotonic()
        fleet = await client.fleet(timeout_s=PATIENCE_S)
        looks.answers.append((asked, time.monotonic(), fleet.requests_waiting + fleet.requests_running))
        await asyncio.sleep(LOOK_S)


async def measure(num_requests: int, num_streams: int, seconds: float) -> Figures:
    """One storm."""
    with tempfile.TemporaryDirectory() as folder:
        database = f"{folder}/ledger.db"
        flags = fixed(0, worker_max_num_seqs=SLOTS, scheduler_max_queued_requests=2 * num_requests)
        flags |= {"ledger.database": database, "scheduler.max_queued_tokens": 2 * num_requests * MAX_TOKENS}
        began = time.time()
        async with plan_mesh(flags, STEP) as mesh:
            figures = await _beside(mesh, num_requests, num_streams, seconds)
        ledger = Ledger(database, time.time)
        found = read_cancellations(ledger, began, time.time(), limit=2 * num_requests)
        ledger.close()
    done = [each for each in found if each.cancellation.done_s is not None]
    figures |= {"rows": len(found), "acknowledged": len(done), "expected": num_requests + num_streams}
    (times,) = times_by_origin(found)
    for name in ("freed", "done"):
        figures[f"{name}_ms"] = {part: getattr(times, f"{name}_{part}_s") * 1e3 for part in ("p50", "p99", "max")}
    states: dict[str, int] = {}
    for each in found:
        where = ",".join(each.cancellation.states)
        states[where] = states.get(where, 0) + 1
    return figures | {"states": states}


async def _beside(mesh: PlanMesh, num_requests: int, num_streams: int, seconds: float) -> Figures:
    address = mesh.gateway
    context, loop = multiprocessing.get_context("spawn"), asyncio.get_running_loop()
    with ProcessPoolExecutor(2, mp_context=context) as clients:
        await asyncio.gather(*(loop.run_in_executor(clients, started) for _ in range(2)))
        alone = time.monotonic() + LEAD_S
        at = alone + seconds + RAMP_S
        streams = loop.run_in_executor(clients, steady, address, num_streams, at + seconds)
        storming = loop.run_in_executor(clients, storm, address, num_requests, alone + seconds, at)
        async with AsyncClient(address) as client:
            looks = Looks()
            looking = asyncio.create_task(look(client, looks))
            spent_alone = await _spent(mesh, alone, seconds)
            spent = await _spent(mesh, at, seconds)
            moments, (accepted, took) = await streams, await storming
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            used = await _blocks_left(client)

    def gaps_from(begin: float) -> dict[str, float]:
        inside = ([moment for moment in noted if begin <= moment < begin + seconds] for noted in moments)
        return in_ms([gap for noted in inside for gap in gaps(noted)], 50, 99, 99.9)

    answered = [after - before for before, after, _ in looks.answers if at - LOOK_S <= before < at + seconds]
    return {
        "accepted": accepted,
        "cancelled_in_ms": took * 1e3,
        "gone_in_ms": looks.gone_after(at, num_streams),
        "gaps_alone": gaps_from(alone),
        "gaps_beside": gaps_from(at - seconds),
        "gaps_storm": gaps_from(at),
        "us_each": {name: (spent[name] - spent_alone[name]) / num_requests * 1e6 for name in spent},
        "fleet": in_ms(answered, 50, 99),
        "blocks_left": used,
    }


async def _spent(mesh: PlanMesh, begin: float, seconds: float) -> dict[str, float]:
    """Seconds of a core that services have from that moment on."""
    await asyncio.sleep(begin - time.monotonic())
    before = {name: mesh.cpu_seconds(name) for name in ("gateway", "scheduler")}
    await asyncio.sleep(begin + seconds - time.monotonic())
    return {name: mesh.cpu_seconds(name) - had for name, had in before.items()}


async def _blocks_left(client: AsyncClient) -> int:
    """Blocks in use once nothing runs; as many as there are after PATIENCE_S."""
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        fleet = await client.fleet(timeout_s=PATIENCE_S)
        used = sum(worker.blocks_used for worker in fleet.workers)
        if (not used and not fleet.requests_running) or time.monotonic() > give_up_at:
            return used
        await asyncio.sleep(LOOK_S)


@click.command()
@click.option("--requests", default=2000, show_default=True, help="that are cancelled at once")
@click.option("--streams", default=8, show_default=True, help="that go on")
@click.option("--seconds", default=5.0, show_default=True, help="of each measurement")
@click.option("--json", "out", type=click.Path(path_type=Path), default=None, help="JSON file to write")
def main(requests: int, streams: int, seconds: float, out: Path | None) -> None:
    """Measures one storm, and fails if anything is left of it."""
    figures = uvloop.run(measure(requests, streams, seconds))
    print(json.dumps(figures, indent=1))
    if out is not None:
        out.write_text(json.dumps(figures, indent=1))
    rows, expected = figures["rows"], figures["expected"]
    if figures["blocks_left"] or rows != expected or figures["acknowledged"] != expected:
        raise click.ClickException(f"{rows} rows of {expected} cancels; {figures['blocks_left']} blocks are left")


if __name__ == "__main__":
    main()
