"""A worker that is there and does not move: what it has goes on elsewhere, and it is used again when it moves."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tercet.client import AsyncClient

from .conftest import Mesh
from .two_workers import WORKER, Stream, TwoWorkers, until

pytestmark = pytest.mark.e2e

NUM_STREAMS = 6


class Device:
    """A worker's device, or all of its process, which can be made to hang."""

    def __init__(self, mesh: Mesh, folder: Path, *, process: bool) -> None:
        self._mesh = mesh
        self._process = process
        self._sign = folder / str(mesh.ports["worker"])

    def hang(self) -> None:
        if self._process:
            os.kill(self._mesh.pid("worker"), signal.SIGSTOP)
        else:
            self._sign.touch()

    def go_on(self) -> None:
        if self._process:
            os.kill(self._mesh.pid("worker"), signal.SIGCONT)
        else:
            self._sign.unlink()


@pytest.fixture
def make(own_mesh: Callable[..., Mesh], tmp_path: Path) -> Callable[..., Mesh]:
    """Makes meshes of which a test may let the worker's device hang."""

    def made(**settings: str) -> Mesh:
        mesh = own_mesh(**settings, HANG_FOLDER=str(tmp_path))
        mesh.modules["worker"] = "tests.e2e.hanging_worker"
        return mesh

    return made


async def _run_all(client: AsyncClient) -> list[str]:
    return list(await asyncio.gather(*(Stream(client, index, 60).run() for index in range(NUM_STREAMS))))


@pytest.mark.parametrize("process", [True, False], ids=["process", "device"])
async def test_streams_of_a_worker_that_hangs_go_on_at_the_other(
    make: Callable[..., Mesh], tmp_path: Path, process: bool
) -> None:
    two = TwoWorkers(make, TERCET_SCHEDULER_HUNG_SECONDS="4")
    device = Device(two.workers[0], tmp_path, process=process)
    async with AsyncClient(two.front.address) as client:
        expected = await _run_all(client)
        streams = [Stream(client, index, 60) for index in range(NUM_STREAMS)]
        tasks = [asyncio.create_task(stream.run()) for stream in streams]
        await until(lambda: all(stream.tokens >= 3 for stream in streams), "all stream")
        assert two.status(0).sequences > 0
        device.hang()
        try:
            assert await asyncio.gather(*tasks) == expected
            # It was given up for its silence, not by a ping that nobody answered, and it is not used.
            (dropped,) = two.front.records("scheduler", "worker_dropped")
            assert dropped["address"] == two.address(0)
            assert dropped["why"].startswith("said nothing")
            assert await Stream(client, 0, 60).run() == expected[0]
            assert not two.status(0).live
        finally:
            device.go_on()
        await until(lambda: two.status(0).live, "it is back")
        two.front.wait_idle()
        assert two.status(0).blocks_used == two.status(0).steps == 0
        assert await _run_all(client) == expected
        assert two.status(0).steps > 0
    two.front.wait_idle()
    assert {record["outcome"] for record in two.front.records("scheduler", "request_finished")} == {"LENGTH"}


async def test_a_scheduler_that_slept_gives_up_no_worker(make: Callable[..., Mesh]) -> None:
    two = TwoWorkers(make, TERCET_SCHEDULER_HUNG_SECONDS="2")
    async with AsyncClient(two.front.address) as client:
        expected = await _run_all(client)
        streams = [Stream(client, index, 60) for index in range(NUM_STREAMS)]
        tasks = [asyncio.create_task(stream.run()) for stream in streams]
        await until(lambda: all(stream.tokens >= 3 for stream in streams), "all stream")
        os.kill(two.front.pid("scheduler"), signal.SIGSTOP)
        try:
            # Longer than it waits for those that nobody can replace.
            await asyncio.sleep(14.0)
        finally:
            os.kill(two.front.pid("scheduler"), signal.SIGCONT)
        assert await asyncio.gather(*tasks) == expected
    two.front.wait_idle()
    assert not two.front.records("scheduler", "worker_dropped")


async def test_a_worker_ends_at_sigterm_though_its_device_does_not_come_back(
    make: Callable[..., Mesh], tmp_path: Path
) -> None:
    mesh = make(**WORKER, TERCET_WORKER_DRAIN_SECONDS="1")
    mesh.start()
    async with AsyncClient(mesh.address) as client:
        stream = Stream(client, 1, 1000)
        task = asyncio.create_task(stream.run())
        await until(lambda: stream.tokens >= 3, "it streams")
        Device(mesh, tmp_path, process=False).hang()
        assert await asyncio.to_thread(mesh.kill, "worker", signal.SIGTERM) == 1
        assert mesh.records("worker", "device_did_not_come_back")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
