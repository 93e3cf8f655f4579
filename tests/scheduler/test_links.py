"""Links to workers as addresses come and go: real gRPC, simulated workers, and a resolver that the test commands."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
import pytest
import structlog
from worker_server import WorkerServer

from scheduler import link
from scheduler.claims import Claims
from scheduler.core import Core
from scheduler.discovery import Discovery
from scheduler.fleet_view import FleetView
from scheduler.link import STAND_BY_SECONDS
from scheduler.links import Links
from scheduler.loop import Loop
from scheduler.server import core_settings
from scheduler.simulator.small import worker_info
from tercet.dialer import Dialer
from tercet.sections import MeshConfig, SchedulerSettings

pytestmark = pytest.mark.timeout(60)

NAME = "dns://workers:50053"


class FencingServer(WorkerServer):
    """Ends the older of two streams, as a real worker does."""

    _handler: asyncio.Task[Any] | None = None

    async def Attach(self, requests: Any, context: grpc.aio.ServicerContext) -> None:
        older, self._handler = self._handler, asyncio.current_task()
        if older is not None:
            older.cancel()
        await super().Attach(requests, context)


class Dns:
    """A resolver whose answer a test writes down."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.asked = 0

    async def __call__(self, _host: str, _port: int) -> list[str]:
        self.asked += 1
        return list(self.addresses)

    async def asked_again(self, times: int = 2) -> None:
        """Until it was asked so often. What it answered before the last time has been followed by then."""
        asked = self.asked + times
        await until(lambda: self.asked >= asked, "the resolver is asked")


class Mesh:
    """The scheduler's side of some workers."""

    def __init__(self, entries: tuple[str, ...], dns: Dns) -> None:
        self.core = Core(core_settings(MeshConfig(scheduler=SchedulerSettings(workers=entries))))
        self.loop = Loop(self.core, time.monotonic)
        self.links = Links(Discovery(entries, 0.01, dns), self.loop, 1)

    @property
    def view(self) -> FleetView:
        return self.core.view()

    def live(self) -> list[str]:
        return [worker.address for worker in self.view.workers if worker.live]

    def listed(self) -> list[str]:
        return [worker.address for worker in self.view.workers]


@contextlib.asynccontextmanager
async def dialling(entries: tuple[str, ...], dns: Dns) -> AsyncIterator[Mesh]:
    mesh = Mesh(entries, dns)
    tasks = [asyncio.create_task(mesh.loop.run()), asyncio.create_task(mesh.links.run())]
    try:
        yield mesh
        for task in tasks:
            assert not task.done(), task.exception()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"did not come about: {what}")


@pytest.fixture
async def workers() -> AsyncIterator[list[WorkerServer]]:
    servers = [FencingServer(dataclasses.replace(worker_info(), worker_id=f"worker-{i}")) for i in range(3)]
    for server in servers:
        await server.start()
    yield servers
    for server in servers:
        await server.kill()


def address(worker: WorkerServer, host: str = "127.0.0.1") -> str:
    return f"{host}:{worker.port}"


class ReticentServer(WorkerServer):
    """Says nothing on its first stream."""

    _asked = False

    async def Attach(self, requests: Any, context: grpc.aio.ServicerContext) -> None:
        if not self._asked:
            self._asked = True
            await context.read()
            await context.read()
            return
        await super().Attach(requests, context)


async def test_a_worker_that_says_no_hello_is_dialled_again_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "HELLO_TIMEOUT_SECONDS", 0.2)
    server = ReticentServer(worker_info())
    host = await server.start()
    with structlog.testing.capture_logs() as logs:
        async with dialling((host,), Dns()) as mesh:
            await until(lambda: mesh.live() == [host], "it is there")
    await server.kill()
    problems = [entry["problem"] for entry in logs if entry["event"] == "worker_unreachable"]
    assert problems == ["ContractError: no hello within 0.2 s"]


async def test_new_addresses_are_dialled_and_old_ones_given_up_when_their_stream_is_over(
    workers: list[WorkerServer],
) -> None:
    a, b, c = workers
    dns = Dns()
    dns.addresses = [address(a), address(b)]
    async with dialling((address(a), NAME), dns) as mesh:
        await until(lambda: mesh.live() == [address(a), address(b)], "both are live")
        assert len(a.epochs) == 1  # written down and resolved, dialled once
        dns.addresses = [address(c)]
        await until(lambda: address(c) in mesh.live(), "the new one is live")
        # b has left the name; its stream goes on, and it is seen as long as it does.
        assert set(mesh.live()) == {address(a), address(b), address(c)}
        await b.kill()
        await until(lambda: mesh.listed() == [address(a), address(c)], "b is forgotten")
        await b.start()
        await a.kill()
        await a.start()
        await until(lambda: len(a.epochs) == 2, "what is written down is dialled for ever")
        await dns.asked_again(10)
        assert len(b.epochs) == 1
        dns.addresses = [address(c), address(b)]
        await until(lambda: set(mesh.live()) == {address(a), address(b), address(c)}, "b is back")
        assert mesh.core.check() == []


async def test_an_address_that_comes_back_in_time_is_dialled_on(workers: list[WorkerServer]) -> None:
    a, b, _ = workers
    dns = Dns()
    dns.addresses = [address(a), address(b)]
    async with dialling((NAME,), dns) as mesh:
        await until(lambda: len(mesh.live()) == 2, "both are live")
        dns.addresses = [address(a)]
        await dns.asked_again()
        dns.addresses = [address(a), address(b)]
        await dns.asked_again()
        await b.kill()
        await until(lambda: mesh.live() == [address(a)], "b is seen to be gone")
        await b.start()
        await until(lambda: len(b.epochs) == 2, "b is dialled again")


async def test_a_dead_address_is_dropped_while_it_waits_for_its_next_dial(workers: list[WorkerServer]) -> None:
    dns = Dns()
    dns.addresses = ["127.0.0.1:1", address(workers[0])]
    async with dialling((NAME,), dns) as mesh:
        await until(lambda: len(mesh.listed()) == 2, "both are listed")
        dns.addresses = [address(workers[0])]
        await until(lambda: mesh.listed() == [address(workers[0])], "the dead one is forgotten")


async def test_a_name_without_an_address_stands_for_what_is_not_known(workers: list[WorkerServer]) -> None:
    dns = Dns()
    async with dialling((address(workers[0]), NAME), dns) as mesh:
        await until(lambda: mesh.live() == [address(workers[0])], "the one written down is live")
        assert mesh.listed() == [address(workers[0]), NAME]
        dns.addresses = [address(workers[1])]
        await until(lambda: mesh.live() == [address(workers[0]), address(workers[1])], "both are live")
        assert mesh.listed() == mesh.live()


async def test_two_addresses_of_one_worker_do_not_fight_over_it(workers: list[WorkerServer]) -> None:
    a, dns = workers[0], Dns()
    both = (address(a), address(a, "localhost"))
    with structlog.testing.capture_logs() as logs:
        async with dialling(both, dns) as mesh:
            for _ in range(20):
                await until(lambda: len(mesh.listed()) == 1 and mesh.live() == mesh.listed(), "one of them has it")
                streams = len(a.epochs)
                # In a fight there are several new streams in that time.
                await asyncio.sleep(2 * STAND_BY_SECONDS)
                if len(a.epochs) == streams:
                    break
            else:
                raise AssertionError(f"they still fight after {len(a.epochs)} streams")
            assert mesh.live() == mesh.listed()
    assert [event for event in logs if event["event"] == "worker_known_by_another_address"]


async def test_the_second_address_takes_over_when_the_first_is_out_of_reach(workers: list[WorkerServer]) -> None:
    """A worker at two ports, of which one closes."""
    a, b, _ = workers
    b.info = a.info
    async with dialling((address(a), address(b)), Dns()) as mesh:
        await until(lambda: len(mesh.live()) == 1 and len(mesh.listed()) == 1, "one of them has it")
        first = a if mesh.live() == [address(a)] else b
        second = b if first is a else a
        await first.kill()
        await until(lambda: mesh.live() == [address(second)], "the other one has it")


@pytest.mark.parametrize("later", range(5))
async def test_a_cancel_that_comes_with_the_hello_is_not_lost(monkeypatch: pytest.MonkeyPatch, later: int) -> None:
    """Whichever is first: a link that is told to end and goes on would keep the scheduler from stopping."""
    greeted: list[asyncio.Future[Any]] = []

    async def greet(_self: link.WorkerLink, _call: Any) -> Any:
        greeted.append(asyncio.get_running_loop().create_future())
        return await greeted[0]

    async def exchange(*_: Any) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(link.WorkerLink, "_greet", greet)
    monkeypatch.setattr(link.WorkerLink, "_exchange", exchange)
    mesh = Mesh((), Dns())
    task = asyncio.create_task(link.WorkerLink(Dialer("127.0.0.1:1", "worker", None), mesh.loop, 1, Claims()).run())
    await until(lambda: bool(greeted), "the worker is greeted")
    greeted[0].set_result(worker_info())
    for _ in range(later):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=5)
    assert done
    assert task.cancelled()
