"""Two workers with one scheduler and gateway in front, and streams to try them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tercet.client import AsyncClient, Delta
from tercet.v1 import operations_pb2

from .conftest import Mesh, wait_until

# float32: the same text on any worker, whatever runs beside it.
WORKER = {"TERCET_WORKER_DTYPE": "float32", "TERCET_WORKER_NUM_THREADS": "1", "TERCET_WORKER_KV_CACHE_MEMORY": "128MiB"}
PROMPTS = ["Once upon a time", "The sea", "Three friends", "Rain", "A letter", "In the year 1900"]


class TwoWorkers:
    """A front of gateway and scheduler, and two workers with processes and ports of their own."""

    def __init__(self, own_mesh: Callable[..., Mesh], *settings: dict[str, str], **front: str) -> None:
        """`settings` of each worker, beside WORKER, and those of the `front`."""
        self.workers = [own_mesh(**{**WORKER, **each}) for each in settings or ({}, {})]
        addresses = ",".join(self.address(index) for index in range(2))
        self.front = own_mesh(TERCET_SCHEDULER_WORKERS=addresses, **front)
        for each in self.workers:
            each.start("worker")
        self.front.start("scheduler", "gateway")
        wait_until(lambda: self.front.healthy("gateway"), f"the mesh serves:\n{self.front.logs()}")
        wait_until(lambda: all(self.status(index).live for index in range(2)), "both workers are live")

    def address(self, index: int) -> str:
        return f"127.0.0.1:{self.workers[index].ports['worker']}"

    def status(self, index: int) -> operations_pb2.WorkerStatus:
        """How the scheduler sees a worker."""
        return next(each for each in self.front.fleet().workers if each.address == self.address(index))


class Stream:
    """One seeded generation."""

    def __init__(self, client: AsyncClient, index: int, max_tokens: int = 100) -> None:
        self.text = ""
        self.tokens = 0
        options: dict[str, Any] = {"temperature": 0.8, "seed": index, "max_tokens": max_tokens, "ignore_eos": True}
        self._events = client.generate(PROMPTS[index % len(PROMPTS)], timeout_s=120, **options)

    async def run(self) -> str:
        """All its text. Raises errors.RequestError."""
        async for event in self._events:
            if isinstance(event, Delta):
                self.text += event.text
                self.tokens += len(event.token_ids)
        return self.text


async def until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, what)
