"""A worker that is told to stop: what it runs goes elsewhere, or to its end; no stream notices."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from tercet import errors
from tercet.client import AsyncClient

from .conftest import Mesh
from .two_workers import WORKER, Stream, TwoWorkers, until

pytestmark = pytest.mark.e2e


@pytest.fixture
def two(own_mesh: Callable[..., Mesh]) -> TwoWorkers:
    return TwoWorkers(own_mesh)


async def _undisturbed(client: AsyncClient, count: int) -> list[str]:
    return list(await asyncio.gather(*(Stream(client, index).run() for index in range(count))))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_streams_of_a_worker_that_stops_go_on_at_the_other(two: TwoWorkers, number: signal.Signals) -> None:
    async with AsyncClient(two.front.address) as client:
        expected = await _undisturbed(client, 4)
        streams = [Stream(client, index) for index in range(4)]
        tasks = [asyncio.create_task(stream.run()) for stream in streams]
        await until(lambda: all(stream.tokens >= 3 for stream in streams), "all stream")
        placed = [status.sequences for status in map(two.status, range(2))]
        assert min(placed) > 0, placed
        status = await asyncio.to_thread(two.workers[0].kill, "worker", number)
        assert status == (0 if number == signal.SIGTERM else -signal.SIGKILL)
        assert await asyncio.gather(*tasks) == expected
    two.front.wait_idle()
    finished = two.front.records("scheduler", "request_finished")[4:]
    assert {record["outcome"] for record in finished} == {"LENGTH"}
    assert sum(record["placements"] > 1 for record in finished) == placed[0]
    assert sum(record["preemptions"] for record in finished) == 0
    if number == signal.SIGTERM:
        # It was told in time: nothing was lost, and it left when it was empty.
        assert sum(record["moves"] for record in finished) == placed[0]
        (lost,) = two.front.records("scheduler", "worker_lost", address=two.address(0))
        assert lost["sequences"] == 0
        (stopping,) = two.workers[0].records("worker", "worker_stopping")
        assert stopping["sequences"] == 0


async def test_the_last_worker_lets_its_streams_end_and_takes_no_new_one(own_mesh: Callable[..., Mesh]) -> None:
    mesh = own_mesh(**WORKER, TERCET_WORKER_DRAIN_SECONDS="60")
    mesh.start()
    async with AsyncClient(mesh.address) as client:
        expected = await Stream(client, 1, 80).run()
        stream = Stream(client, 1, 80)
        task = asyncio.create_task(stream.run())
        await until(lambda: stream.tokens >= 3, "it streams")
        ending = asyncio.create_task(asyncio.to_thread(mesh.kill, "worker", signal.SIGTERM))
        await until(lambda: mesh.fleet().workers[0].draining, "the fleet shows it")
        assert not mesh.healthy("worker")
        with pytest.raises(errors.NoWorkerError):
            await client.generate_once("x", max_tokens=1, timeout_s=10)
        assert await task == expected
        assert await ending == 0
    assert not mesh.fleet().workers[0].live


async def test_streams_that_outlive_the_grace_wait_for_the_next_worker(own_mesh: Callable[..., Mesh]) -> None:
    mesh = own_mesh(**WORKER, TERCET_WORKER_DRAIN_SECONDS="0.5")
    mesh.start()
    async with AsyncClient(mesh.address) as client:
        expected = await Stream(client, 2, 100).run()
        stream = Stream(client, 2, 100)
        task = asyncio.create_task(stream.run())
        await until(lambda: stream.tokens >= 3, "it streams")
        assert await asyncio.to_thread(mesh.kill, "worker", signal.SIGTERM) == 0
        assert not task.done()
        mesh.start("worker")
        assert await task == expected


async def test_a_second_signal_ends_the_grace(own_mesh: Callable[..., Mesh]) -> None:
    mesh = own_mesh(**WORKER, TERCET_WORKER_DRAIN_SECONDS="3600")
    mesh.start()
    async with AsyncClient(mesh.address) as client:
        stream = Stream(client, 3, 2500)
        task = asyncio.create_task(stream.run())
        await until(lambda: stream.tokens >= 3, "it streams")
        os.kill(mesh.pid("worker"), signal.SIGTERM)
        await until(lambda: mesh.fleet().workers[0].draining, "the fleet shows it")
        assert await asyncio.to_thread(mesh.kill, "worker", signal.SIGTERM) == 0
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
