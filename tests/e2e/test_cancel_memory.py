"""A thousand cancelled requests leave nothing: no block, and no memory in any process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from bench.dummy_model import write_dummy_model
from bench.fault_mesh import SHAPE
from gateway.books import MAX_CANCELLATIONS
from tercet.client import AsyncClient

from .conftest import HEALTH_NAMES, Mesh

pytestmark = pytest.mark.e2e

# A leak grows every round; an allocator that takes or gives a page now and then does not. So the median round is what
# counts, and it must hold less than half of what a leak of 4 KiB a request would.
ROUNDS, REQUESTS = 5, 400
BYTES_A_REQUEST = 2048
# What is freed goes back to the system at once: the tensors of a step come in all sizes, and what glibc keeps of them
# for later goes up and down by tens of MiB.
MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "65536"}


def _memory(pid: int) -> int:
    """Bytes of its own that a process has in memory; files that it has mapped come and go with the system's needs."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


async def _storm(client: AsyncClient, first: int, count: int) -> None:
    gate = asyncio.Semaphore(32)

    async def one(number: int) -> None:
        seen = 0
        prompt = f"Story number {number}: once upon a time, " + "far away, " * (number % 12)
        async with gate, client.generate(prompt, max_tokens=500, ignore_eos=True) as generation:
            async for _ in generation:
                seen += 1
                if seen > number % 4:
                    break

    await asyncio.gather(*(one(number) for number in range(first, first + count)))


async def test_a_thousand_cancelled_requests_leave_nothing(own_mesh: Callable[..., Mesh], tmp_path: Path) -> None:
    # What leaks does so for any model; this one costs next to nothing.
    write_dummy_model(SHAPE, tmp_path / "model")
    model = {"TERCET_MODEL_MODEL": str(tmp_path / "model"), "TERCET_MODEL_LOAD_FORMAT": "dummy"}
    # 384 blocks, filled before the first measurement: their pages are touched for the first time as the cache fills.
    # The flight recorder keeps rounds up to its bound on purpose; with a small one that is reached at once.
    bounded = {
        "TERCET_WORKER_DTYPE": "float32",
        "TERCET_WORKER_KV_CACHE_MEMORY": "3MiB",
        "TERCET_SCHEDULER_PLAN_LOG_ROUNDS": "200",
    }
    # A storm is more than this host can do in time.
    mesh = own_mesh(**model, **bounded, **MALLOC, TERCET_SCHEDULER_ADMISSION_MODE="off")
    mesh.start()
    sizes: dict[str, list[int]] = {name: [] for name in HEALTH_NAMES}

    def measure() -> None:
        for name, of_service in sizes.items():
            of_service.append(_memory(mesh.pid(name)))

    async with AsyncClient(mesh.address) as client:
        for token_id in (5, 6, 7):
            await client.generate_once([token_id] * 2500, max_tokens=1)
        (worker,) = mesh.fleet().workers
        assert worker.blocks_total == 384
        # A block that is not full is not kept.
        assert worker.blocks_free <= 1
        # Allocators reach their size, and the gateway has as many cancels to tell of as it remembers.
        await _storm(client, 0, MAX_CANCELLATIONS)
        mesh.wait_idle()
        measure()
        for number in range(ROUNDS):
            await _storm(client, MAX_CANCELLATIONS + number * REQUESTS, REQUESTS)
            mesh.wait_idle()
            measure()
        answer = await client.generate_once("Once", temperature=0.0, max_tokens=4, ignore_eos=True)
    assert len(answer.token_ids) == 4
    growths = {
        name: [later - earlier for earlier, later in itertools.pairwise(of_service)]
        for name, of_service in sizes.items()
    }
    assert all(median(growth) < REQUESTS * BYTES_A_REQUEST for growth in growths.values()), growths
