"""Health as Kubernetes and operators ask for it: of a mesh that is full to the brim, and of processes that hang."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tercet.client import AsyncClient
from tercet.errors import QueueFullError, RequestError
from tercet.health import NAMES, Reasons
from tercet.health_client import ask
from tercet.rpc import open_channel

from ..tercet.raw_http2 import GREETING, Connections
from .conftest import HEALTH_NAMES, ROOT, Mesh, wait_until

pytestmark = pytest.mark.e2e

# A probe's deadline. Kubernetes' own is 1 s; a machine that runs tests may be slow.
ANSWER_S = 5.0
ROUNDS = 10


async def ask_all(mesh: Mesh) -> dict[str, dict[str, Reasons]]:
    """What each service says of its four names, over connections of their own. Fails the test if one does not answer
    in time."""

    async def one(name: str) -> dict[str, Reasons]:
        async with open_channel(f"127.0.0.1:{mesh.ports[name]}") as channel:
            try:
                return await ask(channel, NAMES, ANSWER_S)
            except grpc.aio.AioRpcError as error:
                pytest.fail(f"{name} left a probe without an answer: {error.code().name}: {error.details()}")

    return dict(zip(HEALTH_NAMES, await asyncio.gather(*map(one, HEALTH_NAMES)), strict=True))


@contextlib.asynccontextmanager
async def crowd(mesh: Mesh) -> AsyncIterator[None]:
    """At the gateway's door: as many calls without a key as may be open, and more; as many that send no request; a
    thousand connections that say nothing. At each service as many watches as may be open."""
    async with contextlib.AsyncExitStack() as stack:
        calls: list[Any] = []
        for name in HEALTH_NAMES:
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{mesh.ports[name]}"))
            stub = health_pb2_grpc.HealthStub(channel)
            watches = [stub.Watch(health_pb2.HealthCheckRequest(service="live")) for _ in range(1024)]
            await asyncio.gather(*(watch.read() for watch in watches))
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.Watch(health_pb2.HealthCheckRequest(service="live"), timeout=60).read()
            calls += watches
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(mesh.address))
        calls += [channel.stream_stream("/tercet.v1.Inference/Generate")() for _ in range(1024)]
        connections = await stack.enter_async_context(Connections(mesh.ports["gateway"]))
        await connections.open(b"", 500)
        await connections.open(GREETING, 500)
        yield
        for call in calls:
            call.cancel()


async def knock(client: AsyncClient, refused: list[RequestError]) -> None:
    """Asks again and again for what there is no room for."""
    while True:
        try:
            await client.generate_once("Once", max_tokens=4, timeout_s=60)
        except QueueFullError as error:
            refused.append(error)
        await asyncio.sleep(0.05)


async def test_probes_are_answered_while_everything_is_full(own_mesh: Callable[..., Mesh]) -> None:
    mesh = own_mesh(
        # One step for all of a long prompt, on one thread: it takes half a minute and more.
        TERCET_WORKER_MAX_NUM_BATCHED_TOKENS="8192",
        TERCET_WORKER_NUM_THREADS="1",
        TERCET_WORKER_MAX_NUM_SEQS="1",
        TERCET_WORKER_HUNG_SECONDS="3600",
        TERCET_SCHEDULER_HUNG_SECONDS="600",
        TERCET_SCHEDULER_MAX_QUEUED_REQUESTS="2",
    )
    mesh.start()
    await until(lambda: all_well(mesh), "all is well")
    async with AsyncClient(mesh.address) as client:
        refused: list[RequestError] = []
        long = asyncio.create_task(client.generate_once(list(range(1000, 9000)), max_tokens=1, timeout_s=600))
        await asyncio.to_thread(wait_until, lambda: mesh.fleet().requests_running == 1, "the long prompt runs")
        others = [asyncio.create_task(client.generate_once("Once", max_tokens=4, timeout_s=600)) for _ in range(2)]
        knocking = [asyncio.create_task(knock(client, refused)) for _ in range(4)]
        async with crowd(mesh):
            for _ in range(ROUNDS):
                states = await ask_all(mesh)
                for name in HEALTH_NAMES:
                    assert states[name]["live"] == states[name]["ready"] == states[name]["intact"] == (), states
            assert states["worker"]["has-room"] == ()
            # It was all in one step of the worker, and the queue was full.
            assert not long.done()
            assert refused
            assert mesh.fleet().requests_waiting >= 2

            async def full() -> bool:
                states = await ask_all(mesh)
                return states["scheduler"]["has-room"] == ("no room for class interactive",) and states["gateway"][
                    "has-room"
                ] == ("scheduler: no room for class interactive",)

            await until(full, "there is no room, and the gateway says so as well")
        for task in (long, *others, *knocking):
            task.cancel()
        await asyncio.gather(long, *others, *knocking, return_exceptions=True)
        await until(lambda: all_well(mesh), "there is room again")
    # It is still at that step, and would be waited for.
    mesh.kill("worker")


async def all_well(mesh: Mesh) -> bool:
    """Whether every name holds everywhere."""
    return not any(reasons for states in (await ask_all(mesh)).values() for reasons in states.values())


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Polls until an async `condition` holds."""
    for _ in range(600):
        if await condition():
            return
        await asyncio.sleep(0.1)
    pytest.fail(f"not within 60 s: {what}")


def shown(mesh: Mesh, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and objects of ``tercet health``."""
    command = [sys.executable, "-m", "tercet", "health", "--format", "json", *arguments]
    done = subprocess.run(command, env=mesh._environment, capture_output=True, text=True, cwd=ROOT, timeout=120)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


async def test_what_hangs_or_is_gone_is_told_by_name(own_mesh: Callable[..., Mesh]) -> None:
    mesh = own_mesh()
    mesh.start()
    await until(lambda: all_well(mesh), "all is well")
    code, reports = await asyncio.to_thread(shown, mesh)
    assert code == 0
    assert [each["service"] for each in reports] == list(HEALTH_NAMES)

    # The gateway does its own work, and says long before its stream breaks that the scheduler does not.
    os.kill(mesh.pid("scheduler"), signal.SIGSTOP)
    try:
        await asyncio.to_thread(wait_until, lambda: not mesh.healthy("gateway"), "the gateway is not ready")
        code, (gateway, scheduler, worker) = await asyncio.to_thread(shown, mesh, "--timeout", "1")
    finally:
        os.kill(mesh.pid("scheduler"), signal.SIGCONT)
    assert code == 1
    assert gateway["names"]["live"]["serving"]
    assert gateway["names"]["ready"] == {"serving": False, "reason": "the scheduler does not answer"}
    assert scheduler["problem"] == "no answer within 1 s"
    assert worker["names"]["ready"]["serving"]
    await until(lambda: all_well(mesh), "all is well again")
    assert not mesh.records("gateway", "scheduler_lost")

    mesh.kill("worker")
    await asyncio.to_thread(wait_until, lambda: not ready(mesh, "scheduler"), "there is no worker")
    code, (gateway, scheduler, worker) = await asyncio.to_thread(shown, mesh)
    assert code == 1
    assert gateway["names"]["live"]["serving"]
    assert gateway["names"]["ready"]["reason"] == "no worker is there for its model"
    assert scheduler["names"]["live"]["serving"]
    assert scheduler["names"]["tercet.mesh.v1.Scheduler"]["serving"]
    assert scheduler["names"]["intact"]["reason"] == "1 of 1 workers not connected"
    assert worker["names"] == {}
    mesh.start("worker")
    code, _ = await asyncio.to_thread(shown, mesh, "--wait", "60")
    assert code in (0, 3)
    await until(lambda: all_well(mesh), "all is well after a restart")


def ready(mesh: Mesh, name: str) -> bool:
    """Whether a service says so."""
    return mesh.health(name, "ready") == health_pb2.HealthCheckResponse.SERVING


async def test_a_device_that_does_not_come_back_is_told_by_all(own_mesh: Callable[..., Mesh], tmp_path: Path) -> None:
    mesh = own_mesh(TERCET_WORKER_HUNG_SECONDS="5", HANG_FOLDER=str(tmp_path))
    mesh.modules["worker"] = "tests.e2e.hanging_worker"
    mesh.start()
    await until(lambda: all_well(mesh), "all is well")
    sign = tmp_path / str(mesh.ports["worker"])
    async with AsyncClient(mesh.address) as client:
        sign.touch()
        asked = asyncio.create_task(client.generate_once("Once", max_tokens=4, ignore_eos=True, timeout_s=300))

        async def told() -> bool:
            states = await ask_all(mesh)
            # Only starting the worker again would help, and only the worker.
            assert states["gateway"]["live"] == states["scheduler"]["live"] == ()
            return bool(states["worker"]["live"] and states["scheduler"]["ready"] and states["gateway"]["ready"])

        await until(told, "the worker is not live, and the others are not ready")
        states = await ask_all(mesh)
        assert states["worker"]["live"][0].startswith("its device has been at one step for")
        assert states["scheduler"]["ready"][0].startswith("no worker has moved for")
        assert states["gateway"]["ready"][0].startswith("scheduler: no worker has moved for")
        assert not asked.done()
        sign.unlink()
        assert (await asked).finished.usage.completion_tokens == 4
        await until(lambda: all_well(mesh), "all is well again")
