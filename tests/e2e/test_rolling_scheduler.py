"""Two schedulers, of which one leads: when that one goes, whatever runs goes on at the other, and no client notices."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tercet.client import AsyncClient
from tercet.ledger.ledger import Ledger
from tercet.ledger.usage import Usage, usage

from .conftest import Mesh, wait_until
from .two_workers import WORKER, Stream, until

pytestmark = pytest.mark.e2e


class TwoSchedulers:
    """A gateway and a worker, `front`, and two schedulers with processes of their own."""

    def __init__(self, own_mesh: Callable[..., Mesh], **settings: str) -> None:
        self.front = own_mesh(**WORKER, **settings)
        worker = self.front.address_of("worker")
        self.schedulers = [own_mesh(TERCET_SCHEDULER_WORKERS=worker, **settings) for _ in range(2)]
        addresses = ",".join(each.address_of("scheduler") for each in self.schedulers)
        for mesh in (self.front, *self.schedulers):
            mesh.set(TERCET_GATEWAY_SCHEDULER=addresses, TERCET_SCHEDULER_PEERS=addresses)
        self.front.start("worker")
        self.start(0)
        wait_until(lambda: self.leads(0), "the first one leads")
        self.start(1)
        self.front.start("gateway")
        wait_until(lambda: self.front.healthy("gateway"), "the mesh serves")
        wait_until(lambda: bool(self.schedulers[1].records("scheduler", "gateway_attached")), "both know the gateway")

    def start(self, index: int) -> None:
        self.schedulers[index].start("scheduler")
        wait_until(lambda: self.schedulers[index].health("scheduler", "") == 1, "it answers probes")

    def leads(self, index: int) -> bool:
        """Whether that one has led longest of late."""
        events = [
            record
            for name in ("scheduler_leads", "scheduler_stands_by")
            for record in self.schedulers[index].records("scheduler", name)
        ]
        return bool(events) and max(events, key=lambda each: str(each["timestamp"]))["event"] == "scheduler_leads"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_streams_go_on_at_the_next_scheduler(
    own_mesh: Callable[..., Mesh], number: signal.Signals, tmp_path: Path
) -> None:
    database = str(tmp_path / "ledger.db")
    two = TwoSchedulers(own_mesh, TERCET_LEDGER_DATABASE=database)
    async with AsyncClient(two.front.address) as client:
        expected = await asyncio.gather(*(Stream(client, index).run() for index in range(4)))
        streams = [Stream(client, index) for index in range(4)]
        tasks = [asyncio.create_task(stream.run()) for stream in streams]
        await until(lambda: all(stream.tokens >= 3 for stream in streams), "all stream")
        status = await asyncio.to_thread(two.schedulers[0].kill, "scheduler", number)
        assert status == (0 if number == signal.SIGTERM else -signal.SIGKILL)
        # While nobody leads, and then.
        new = await Stream(client, 4, 20).run()
        assert await asyncio.gather(*tasks) == expected
        taken = len(two.front.records("gateway", "request_taken_over"))
        assert taken > 0
        # And back again.
        await asyncio.to_thread(two.start, 0)
        streams = [Stream(client, index) for index in range(4)]
        tasks = [asyncio.create_task(stream.run()) for stream in streams]
        await until(lambda: all(stream.tokens >= 3 for stream in streams), "all stream")
        await asyncio.to_thread(two.schedulers[1].kill, "scheduler", number)
        assert await asyncio.gather(*tasks) == expected
        assert await Stream(client, 4, 20).run() == new
    assert len(two.front.records("gateway", "request_taken_over")) > taken
    two.front.wait_idle()
    # One row each, with all tokens once.
    ledger = Ledger(database, time.time)

    def total() -> Usage:
        return usage(ledger, 0.0, 1e12)[0]

    wait_until(lambda: not total().open, "all rows are closed")
    assert (total().requests, total().completed) == (14, 14)
    assert total().generated_tokens == total().delivered_tokens == 12 * 100 + 2 * 20
    ledger.close()


async def test_streams_follow_the_workers_to_a_scheduler_that_takes_them(own_mesh: Callable[..., Mesh]) -> None:
    """Two that do not hear of each other both lead, and a worker obeys the later one."""
    first = own_mesh(**WORKER)
    second = own_mesh(TERCET_SCHEDULER_WORKERS=first.address_of("worker"))
    first.set(TERCET_GATEWAY_SCHEDULER=f"{first.address_of('scheduler')},{second.address_of('scheduler')}")
    first.start()
    async with AsyncClient(first.address) as client:
        expected = await asyncio.gather(*(Stream(client, index, 150).run() for index in range(3)))
        streams = [Stream(client, index, 150) for index in range(3)]
        tasks = [asyncio.create_task(stream.run()) for stream in streams]
        await until(lambda: all(stream.tokens >= 3 for stream in streams), "all stream")
        second.start("scheduler")
        assert await asyncio.gather(*tasks) == expected
        # However soon the streams were over.
        await until(lambda: bool(second.records("scheduler", "worker_attached")), "the later one has the worker")
        assert await Stream(client, 0, 150).run() == expected[0]
    assert second.records("scheduler", "request_finished")
