"""The parts of bench/plans.py that run a mesh of real processes; each returns its figures by name.

Variants that are compared take turns, in an order that is turned round each time, since a machine drifts.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

from bench.figures import overlap
from bench.plan_mesh import PlanMesh, Simulated, fixed, plan_mesh
from bench.timer import timer_gaps
from bench.token_gateway import TokenGateway
from tercet.client import AsyncClient, Delta
from tercet.load.figures import percentile

VOCAB_SIZE = 49152
# Of streams beside those that are measured.
BESIDE_TOKENS = 2000


def prompt(length: int, rng: random.Random) -> list[int]:
    """Random tokens."""
    return [rng.randrange(3, VOCAB_SIZE) for _ in range(length)]


def in_turns(names: Sequence[Any], times: int) -> list[Any]:
    """Each name so many times: A B B A A B and so on."""
    return [name for turn in range(times) for name in (names if turn % 2 == 0 else tuple(reversed(names)))]


async def token_moments(client: AsyncClient, tokens: Sequence[int], max_tokens: int) -> list[float]:
    """Seconds from the call to each message with tokens."""
    started = time.perf_counter()
    request = client.generate(list(tokens), temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    async with request as events:
        return [time.perf_counter() - started async for event in events if isinstance(event, Delta)]


@contextlib.asynccontextmanager
async def beside(work: Callable[[], Awaitable[Any]], count: int) -> AsyncIterator[None]:
    """So many loops of some work while the scope lasts."""

    async def again() -> None:
        while True:
            await work()

    tasks = [asyncio.create_task(again()) for _ in range(count)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def first_tokens(simulated: Simulated | None, seconds: float) -> dict[str, Any]:
    """Milliseconds to a first token through gateway and client at low load: one request of 64 tokens in and 16 out at a
    time, beside one stream that decodes; plans of 1 and of 16 steps."""
    rng = random.Random(1)
    found: dict[int, list[float]] = {1: [], 16: []}
    async with contextlib.AsyncExitStack() as stack:
        clients: dict[int, AsyncClient] = {}
        for steps in found:
            _, clients[steps] = await stack.enter_async_context(_started(steps, simulated))
        deadline = time.monotonic() + seconds
        for steps in itertools.cycle(in_turns((1, 16), 2)):
            if time.monotonic() > deadline and len(found[1]) == len(found[16]):
                break
            client = clients[steps]
            async with beside(partial(token_moments, client, prompt(16, rng), BESIDE_TOKENS), 1):
                await asyncio.sleep(0.15)
                for _ in range(8):
                    await asyncio.sleep(rng.random() * 0.03)
                    found[steps].append((await token_moments(client, prompt(64, rng), 16))[0] * 1e3)
    figures: dict[str, Any] = {"requests_each": len(found[1])}
    for percent in (50, 95):
        one, many = (percentile(found[steps], percent) for steps in (1, 16))
        figures |= {f"k1_p{percent}_ms": one, f"k16_p{percent}_ms": many, f"p{percent}_ratio": many / one}
    return figures


async def token_gaps(simulated: Simulated | None, seconds: float, runs: int) -> dict[str, Any]:
    """Inter-token gaps of 8 steady streams through gateway and client while newcomers of 32 tokens come, three a
    second. Steps may take `max_mixed_step_ms`, 1.2 times a step without newcomers, for prefill.

    `timer` is what the machine itself did meanwhile: the same of a process that only sleeps, a step at a time."""
    rng = random.Random(2)
    async with _started(16, simulated) as (_, client):
        step_ms = 1e3 * median(await _steady_gaps(client, 2.0, rng, newcomers=False))
    mixed_ms = max(1.0, 1.2 * step_ms)
    found: dict[int, list[list[float]]] = {1: [], 16: [], 0: []}
    timers: dict[int, list[list[float]]] = {steps: [] for steps in found}
    for steps in in_turns(tuple(found), runs):
        async with (
            _started(steps, simulated, scheduler_max_mixed_step_ms=mixed_ms) as (_, client),
            timer_gaps(step_ms) as timer,
        ):
            found[steps].append(await _steady_gaps(client, seconds / runs / len(found), rng, newcomers=True))
        timers[steps].append(timer)
    figures: dict[str, Any] = {"runs_each": runs, "max_mixed_step_ms": mixed_ms}
    for steps, each in found.items():
        flat = list(itertools.chain.from_iterable(each))
        middle = median(flat)
        figures |= {f"k{steps}_gaps": len(flat), f"k{steps}_median_ms": middle * 1e3}
        figures |= {f"k{steps}_p99_ratio": percentile(flat, 99) / middle, f"k{steps}_max_ratio": max(flat) / middle}
        figures[f"k{steps}_max_ratio_of_runs"] = [max(run) / median(run) for run in each]
        figures[f"k{steps}_timer_max_ratio_of_runs"] = [max(run) / median(run) for run in timers[steps]]
    return figures


async def throughput(simulated: Simulated | None, seconds: float, runs: int) -> dict[str, Any]:
    """Tokens a second with more requests than places: prompts of 64 tokens, outputs of exponential lengths, mean 100.
    Simulated workers have 32 places and their clients no text; what they were idle is known, too."""
    found: dict[int, list[dict[str, float]]] = {1: [], 16: [], 0: []}
    for steps in in_turns(tuple(found), runs):
        found[steps].append(await _one_throughput(steps, simulated, seconds / runs / len(found)))
    figures: dict[str, Any] = {"runs_each": runs}
    for steps, each in found.items():
        for name in each[0]:
            figures[f"k{steps}_{name}"] = median(run[name] for run in each)
        figures[f"k{steps}_tokens_per_s_of_runs"] = [run["tokens_per_s"] for run in each]
    figures["k16_over_k1"] = figures["k16_tokens_per_s"] / figures["k1_tokens_per_s"]
    return figures


async def _one_throughput(steps: int, simulated: Simulated | None, seconds: float) -> dict[str, float]:
    rng = random.Random(3)
    places = 32 if simulated else 8
    async with (
        _started(steps, simulated, worker_max_num_seqs=places) as (mesh, _),
        TokenGateway(mesh.scheduler) as link,
    ):
        await link.until_workers(1)

        async def one() -> None:
            await link.submit(prompt(64, rng), min(1000, 1 + int(rng.expovariate(0.01))), watched=False).done

        async with beside(one, 2 * places):
            await asyncio.sleep(1.5)
            begin, tokens = time.monotonic(), link.num_tokens
            await asyncio.sleep(seconds)
            end, tokens = time.monotonic(), link.num_tokens - tokens
    figures = {"tokens_per_s": tokens / (end - begin)}
    for trace in mesh.traces:
        figures["idle"] = overlap(trace.idle, begin, end) / (end - begin)
        num_steps = sum(begin < each[0] < end for each in trace.steps)
        figures["late_steps"] = sum(begin < each < end for each in trace.late) / max(1, num_steps)
    return figures


async def revocations(simulated: Simulated, seconds: float) -> dict[str, Any]:
    """Milliseconds until a newcomer's plan begins on a worker that is in plans of 32 steps for 16 streams, from two
    moments: when the worker's process received it, and when the gateway's stand-in submitted the newcomer."""
    rng = random.Random(4)
    newcomers = {}
    async with _started(32, simulated) as (mesh, _), TokenGateway(mesh.scheduler) as link:
        await link.until_workers(1)

        async def stream() -> None:
            await link.submit(prompt(64, rng), 4000, watched=False).done

        async with beside(stream, 16):
            await asyncio.sleep(1.0)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                await asyncio.sleep(0.02 + rng.random() * 0.1)
                newcomer = link.submit(prompt(32, rng), 2)
                await newcomer.done
                newcomers[newcomer.sequence_id] = newcomer.submitted_at
    (trace,) = mesh.traces
    received, submitted = [], []
    for moment, begin, sequence_id in trace.revocations:
        if sequence_id in newcomers:
            received.append((begin - moment) * 1e3)
            submitted.append((begin - newcomers[sequence_id]) * 1e3)
    figures: dict[str, Any] = {"step_ms": simulated.step_ms, "newcomers": len(newcomers), "revoked": len(received)}
    for name, values in (("from_receipt", received), ("from_submit", submitted)):
        figures |= {f"{name}_p{percent}_ms": percentile(values, percent) for percent in (50, 99, 100)}
    bound = simulated.step_ms + 1.0
    figures["receipt_within_step_plus_1ms"] = sum(value <= bound for value in received) / len(received)
    figures["submit_within_step_plus_1ms"] = sum(value <= bound for value in submitted) / len(submitted)
    return figures


async def prefix_caching(hits: bool, pairs: int) -> dict[str, Any]:
    """Milliseconds to the first token of prompts of 1,000 tokens on the CPU model, one at a time, prefix caching on and
    off: 900 of them shared by all, or none."""
    rng = random.Random(5)
    found: dict[bool, list[float]] = {True: [], False: []}
    async with contextlib.AsyncExitStack() as stack:
        clients = {}
        for caching in found:
            # Small, so that every block has been in memory before: first touches cost as much as what is measured.
            flags = fixed(
                0,
                worker_enable_prefix_caching=caching,
                worker_max_num_batched_tokens=1024,
                worker_kv_cache_memory=128 << 20,
            )
            mesh = await stack.enter_async_context(plan_mesh(flags))
            clients[caching] = await stack.enter_async_context(AsyncClient(mesh.gateway))
        shared = prompt(900, rng) if hits else []
        for client in clients.values():
            for _ in range(8):
                await token_moments(client, shared + prompt(1000 - len(shared), rng), 2)
        for turn in range(pairs):
            tokens = shared + prompt(1000 - len(shared), rng)
            for caching in (True, False) if turn % 2 else (False, True):
                found[caching].append((await token_moments(clients[caching], tokens, 2))[0] * 1e3)
    figures: dict[str, Any] = {"pairs": pairs}
    for caching, name in ((True, "on"), (False, "off")):
        figures |= {f"{name}_p50_ms": median(found[caching]), f"{name}_p95_ms": percentile(found[caching], 95)}
    figures["off_over_on"] = figures["off_p50_ms"] / figures["on_p50_ms"]
    # Pair by pair, so that the machine's drift drops out.
    pairwise = [off / on for on, off in zip(found[True], found[False], strict=True)]
    figures["off_over_on_median_of_pairs"] = median(pairwise)
    return figures


@contextlib.asynccontextmanager
async def _started(
    steps: int, simulated: Simulated | None, **settings: Any
) -> AsyncIterator[tuple[PlanMesh, AsyncClient]]:
    """A mesh that has answered once, and a client."""
    if simulated is None:
        settings = {"worker_max_num_seqs": 32, **settings}
    async with plan_mesh(fixed(steps, **settings), simulated) as mesh, AsyncClient(mesh.gateway) as client:
        for _ in range(3):
            await token_moments(client, prompt(64, random.Random(0)), 32)
        yield mesh, client


async def _steady_gaps(client: AsyncClient, seconds: float, rng: random.Random, *, newcomers: bool) -> list[float]:
    """Seconds between messages of each of 8 streams, once they all run."""
    begin = float("inf")
    found: list[float] = []

    async def steady() -> None:
        last = float("inf")
        request = client.generate(prompt(64, rng), temperature=0.0, max_tokens=1900, ignore_eos=True)
        async with request as events:
            async for event in events:
                if isinstance(event, Delta):
                    now = time.perf_counter()
                    if last > begin:
                        found.append(now - last)
                    last = now

    async with beside(steady, 8):
        await asyncio.sleep(1.0)
        begin = time.perf_counter()
        while time.perf_counter() < begin + seconds:
            await asyncio.sleep(rng.expovariate(3.0))
            if newcomers:
                await token_moments(client, prompt(32, rng), 4)
    return found
