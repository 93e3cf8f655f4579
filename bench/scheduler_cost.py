"""What the scheduler costs: a round with many sequences running and waiting, memory over a million sequences, and the
tokens that one process carries."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.core_driver import CoreDriver, Took
from bench.figures import overlap
from bench.plan_mesh import PlanMesh, Simulated, fixed, plan_mesh
from bench.token_gateway import TokenGateway
from scheduler.admission import QueueBounds
from scheduler.events import WorkerInfo
from scheduler.simulator.small import worker_info
from tercet.load.figures import percentile

RUNNING, WAITING = 1024, 10_000
PLAN_LOG_ROUNDS = 20_000
SEQUENCES = 1_000_000
WORKERS, SEQUENCES_EACH, STEP_MS = 8, 256, 10.0


def big_worker(index: int, max_num_seqs: int) -> WorkerInfo:
    """A worker with room for sequences of 1,024 tokens each."""
    return worker_info(
        worker_id=f"worker-{index}",
        block_size=16,
        num_blocks=max_num_seqs * 64,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=4096,
        max_model_len=8192,
    )


def round_cost(
    workers: int,
    num_steps: int,
    running: int = RUNNING,
    waiting: int = WAITING,
    tenants: int = 1,
    rounds: int = 1500,
) -> dict[str, float]:
    """Milliseconds of a round of the core, by its parts and as a whole, so many sequences running on so many workers
    and so many waiting, of so many tenants: rounds with plans without and with newcomers, who take the places of
    sequences that have ended.

    `num_steps` as the setting; with a fixed length nearly every newcomer revokes a plan. The recorder is on, as it is
    by default. It takes a checkpoint once in thousands of rounds, which is measured by itself."""
    driver = CoreDriver(
        [big_worker(index, running // workers) for index in range(workers)],
        plan_log_rounds=PLAN_LOG_ROUNDS,
        num_steps=num_steps,
        tenants=tenants,
    )
    rng = random.Random(1)
    driver.submit([(64, rng.randrange(200, 900)) for _ in range(running + waiting)])
    while sum(len(worker.sequences) for worker in driver.core.workers) < running:
        driver.step()
    # As the process does, once it has started.
    gc.collect()
    gc.freeze()
    driver.times.clear()
    for _ in range(rounds):
        driver.step()
        # The queue stays as long.
        driver.submit([(64, rng.randrange(200, 900)) for _ in range(running + waiting - driver.outstanding)])
    checkpoints = [driver.checkpoint() for _ in range(20)]
    gc.unfreeze()
    figures: dict[str, float] = {}
    for name, times in (("steady", driver.times.steady), ("newcomer", driver.times.starting)):
        figures |= {f"{name}_rounds": len(times)}
        for part in ("apply", "plan", "record", "whole"):
            figures |= _milliseconds(f"{name}_{part}", [getattr(each, part) for each in times])
    return figures | _milliseconds("checkpoint", checkpoints)


def token_cost(mean_tokens: int, steps: int = 200) -> dict[str, float]:
    """Microseconds on a core that the core of the scheduler takes for each token, by its parts: `carried` without
    processes, so that others on the machine disturb it little. A request follows each that has ended."""
    driver = CoreDriver(
        [big_worker(index, SEQUENCES_EACH) for index in range(WORKERS)], plan_log_rounds=PLAN_LOG_ROUNDS
    )
    rng = random.Random(1)

    def run(count: int) -> int:
        before = sum(worker.tokens for worker in driver.core.workers)
        for _ in range(count):
            missing = WORKERS * SEQUENCES_EACH - driver.outstanding
            if missing:
                driver.submit([(64, min(4000, 1 + int(rng.expovariate(1 / mean_tokens)))) for _ in range(missing)])
            driver.step()
        return sum(worker.tokens for worker in driver.core.workers) - before

    # Until the workers are full and first ends have spread out.
    run(150)
    gc.collect()
    gc.freeze()
    driver.times.clear()
    tokens = run(steps)
    gc.unfreeze()
    rounds = driver.times.steady + driver.times.starting + driver.times.other
    return {
        f"{part}_us": sum(getattr(each, part).on_core for each in rounds) / tokens * 1e6
        for part in ("apply", "plan", "record", "whole")
    }


def refusals(length: int, running: int = RUNNING, rounds: int = 500, each: int = 10) -> dict[str, float]:
    """Milliseconds that the core takes to say no to a prompt of `length` tokens where the queue has no room for it, and
    those of the rounds beside it, without newcomers: `each` refusals for each step of 10 ms."""
    driver = CoreDriver(
        [big_worker(0, running)], plan_log_rounds=PLAN_LOG_ROUNDS, bounds=QueueBounds(2 * running, 10**12)
    )
    # They all still run at the end, and one waits.
    driver.submit([(64, 900)] * (running + 1))
    for _ in range(100):
        driver.step()
    driver.submit([(64, 900)] * (2 * running - 1))
    gc.collect()
    gc.freeze()
    driver.times.clear()
    took = []
    for _ in range(rounds):
        driver.step()
        took += [driver.refuse(length) for _ in range(each)]
    gc.unfreeze()
    whole = [each.whole for each in driver.times.steady]
    return _milliseconds("refusal", took) | _milliseconds("steady_whole", whole)


def _milliseconds(name: str, times: Sequence[Took]) -> dict[str, float]:
    wall, on_core = zip(*times, strict=True)
    return {
        f"{name}_p50_ms": percentile(wall, 50) * 1e3,
        f"{name}_p99_ms": percentile(wall, 99) * 1e3,
        f"{name}_max_ms": max(wall) * 1e3,
        f"{name}_p99_on_core_ms": percentile(on_core, 99) * 1e3,
    }


def memory(sequences: int = SEQUENCES) -> Iterator[dict[str, float]]:
    """Resident memory and objects of the collector while the core serves a million sequences, at each tenth."""
    workers = [big_worker(index, 256) for index in range(2)]
    driver = CoreDriver(workers, plan_log_rounds=PLAN_LOG_ROUNDS, timed=False)
    rng = random.Random(1)
    target = 0
    started = time.perf_counter()
    for tenth in range(1, 11):
        target = sequences * tenth // 10
        while driver.ended < target:
            missing = 1024 - driver.outstanding
            if missing > 64:
                driver.submit([(rng.randrange(1, 64), rng.randrange(1, 8)) for _ in range(missing)])
            driver.step()
        gc.collect()
        yield {
            "sequences": driver.ended,
            "rss_mib": resident_bytes() / 2**20,
            "objects": len(gc.get_objects()),
            "seconds": time.perf_counter() - started,
        }


def resident_bytes(pid: int | str = "self") -> int:
    """Bytes of its own that a process has in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


async def carried(seconds: float, mean_tokens: int, num_steps: int = 0) -> dict[str, Any]:
    """Tokens a second that one scheduler process carries on a core of its own: 8 simulated workers of 256 sequences and
    10 ms a step, prompts of 64 tokens, outputs of exponential lengths. Workers and gateway share the other cores.

    There are 2,048 requests at any time. Where running and waiting ones are much fewer together, the others are with a
    gateway that is behind, and it is the bench's cores that were too slow.
    """
    cores = sorted(os.sched_getaffinity(0))
    flags = fixed(
        num_steps,
        worker_max_num_seqs=SEQUENCES_EACH,
        worker_max_num_batched_tokens=2048,
        scheduler_max_queued_requests=1_000_000,
    )
    simulated = Simulated(STEP_MS)
    async with plan_mesh(flags, simulated, num_workers=WORKERS, scheduler_core=cores[0]) as mesh:
        os.sched_setaffinity(0, set(cores[1:]))
        try:
            async with TokenGateway(mesh.scheduler) as gateway:
                await gateway.until_workers(WORKERS)
                figures, begin, end = await _carry(mesh, gateway, seconds, mean_tokens)
        finally:
            os.sched_setaffinity(0, set(cores))
    device_seconds = (end - begin) * WORKERS
    late = sum(begin < moment < end for trace in mesh.traces for moment in trace.late)
    steps = sum(begin < step[0] < end for trace in mesh.traces for step in trace.steps)
    return {
        "mean_output_tokens": mean_tokens,
        **figures,
        "worker_idle": sum(overlap(trace.idle, begin, end) for trace in mesh.traces) / device_seconds,
        "steps_per_s": steps / device_seconds,
        "late_steps": late / max(1, steps),
    }


async def _carry(
    mesh: PlanMesh, gateway: TokenGateway, seconds: float, mean_tokens: int
) -> tuple[dict[str, Any], float, float]:
    rng = random.Random(1)

    async def client() -> None:
        while True:
            await gateway.submit([5] * 64, min(4000, 1 + int(rng.expovariate(1 / mean_tokens))), watched=False).done

    clients = [asyncio.create_task(client()) for _ in range(WORKERS * SEQUENCES_EACH)]
    try:
        # Until the workers are full and first ends have spread out.
        await asyncio.sleep(6.0)
        begin, tokens, cpu = time.monotonic(), gateway.num_tokens, mesh.cpu_seconds("scheduler")
        await asyncio.sleep(seconds)
        end, tokens, cpu = time.monotonic(), gateway.num_tokens - tokens, mesh.cpu_seconds("scheduler") - cpu
        fleet = await gateway.fleet()
    finally:
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    figures = {
        "tokens_per_s": tokens / (end - begin),
        "scheduler_cpu": cpu / (end - begin),
        "scheduler_us_per_token": cpu / max(1, tokens) * 1e6,
    }
    return {**figures, "running": fleet.requests_running, "waiting": fleet.requests_waiting}, begin, end
