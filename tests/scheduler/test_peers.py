"""What one scheduler hears of another, and for how long it counts when that falls silent."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import pytest

from scheduler import leadership, peers
from scheduler.admission import QueueBounds
from scheduler.core import Core
from scheduler.core_settings import CoreSettings
from scheduler.leadership import Leadership
from scheduler.loop import Loop
from scheduler.peers import ABSENT_SECONDS, Peers
from scheduler.policy import Policy
from scheduler.service import SchedulerService
from scheduler.standing import Standing
from tercet import rpc
from tercet.dialer import Dialer
from tercet.mesh.v1 import scheduler_pb2, scheduler_pb2_grpc
from tercet.ports import free_ports


class Clock:
    """Goes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Listening:
    """Peers that are listened to, on that clock."""

    def __init__(self, *ports: int) -> None:
        self.clock = Clock()
        self.peers = Peers([Dialer(f"127.0.0.1:{port}", "scheduler", None) for port in ports], self.clock)
        self._changed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def scope(self) -> AsyncIterator[Listening]:
        task = asyncio.create_task(self.peers.run(self._changed.set))
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 20)


class Said:
    """What a scheduler says of itself."""

    def __init__(self, *standings: Standing) -> None:
        self._standings = standings
        self.silent = asyncio.Event()
        # While it is not set, whoever asks gets no answer; those who listen already hear the rest.
        self.moves = asyncio.Event()
        self.moves.set()
        # Set when somebody asks in vain.
        self.asked = asyncio.Event()

    async def __call__(self) -> AsyncIterator[Standing]:
        if not self.moves.is_set():
            self.asked.set()
        await self.moves.wait()
        if self.silent.is_set():
            # Who comes again hears nothing.
            await asyncio.Event().wait()
        for each in self._standings:
            yield each
        await self.silent.wait()


@contextlib.asynccontextmanager
async def served(said: Said) -> AsyncIterator[int]:
    """The port of a scheduler that says that."""
    core = Core(CoreSettings(("host:1",), Policy(1, 0), QueueBounds(1, 1_000)))
    server = rpc.Server()
    service = SchedulerService(Loop(core, lambda: 0.0), 3, said)
    scheduler_pb2_grpc.add_SchedulerServicer_to_server(service, server.grpc_server)
    try:
        yield await server.start("127.0.0.1", 0, [scheduler_pb2.DESCRIPTOR], key="scheduler.port")
    finally:
        await server.stop(0)


async def test_one_that_was_never_there_counts_for_a_second() -> None:
    (port,) = free_ports(1)
    async with Listening(port).scope() as listening:
        assert listening.peers.unsure
        listening.clock.now += ABSENT_SECONDS
        assert not listening.peers.unsure
        assert listening.peers.heard() == []


@pytest.mark.parametrize("leaving", [False, True])
async def test_one_that_falls_silent_counts_a_little_longer_unless_it_has_left(leaving: bool) -> None:
    last = Standing(3, 9, leaving)
    said = Said(Standing(3), last)
    async with served(said) as port, Listening(port).scope() as listening:
        await listening.until(lambda: listening.peers.heard() == [last])
        assert not listening.peers.unsure
        listening.clock.now += 10 * ABSENT_SECONDS
        assert listening.peers.heard() == [last]
        said.silent.set()
        await listening.until(lambda: bool(listening.peers._down))
        assert listening.peers.heard() == ([] if leaving else [last])
        listening.clock.now += ABSENT_SECONDS
        assert listening.peers.heard() == []


@pytest.fixture
def asked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "ASK_SECONDS", 0.02)
    monkeypatch.setattr(leadership, "ASK_AGAIN_SECONDS", 0.02)


@pytest.mark.usefixtures("asked_often")
async def test_one_that_hangs_is_not_there_until_it_answers_again() -> None:
    leader = Standing(3, 9)
    said = Said(leader)
    async with served(said) as port, Listening(port).scope() as listening:
        await listening.until(lambda: listening.peers.heard() == [leader])
        said.moves.clear()
        # Its connection stands, and no time passes.
        await listening.until(lambda: not listening.peers.heard())
        assert not listening.peers._down
        assert not listening.peers.unsure
        said.moves.set()
        await listening.until(lambda: listening.peers.heard() == [leader])


async def test_one_that_stood_still_itself_takes_nobody_for_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "ASK_SECONDS", 0.2)
    said = Said(Standing(3, 9))
    async with served(said) as port, Listening(port).scope() as listening:
        await listening.until(lambda: listening.peers.heard() == [Standing(3, 9)])
        said.moves.clear()
        await asyncio.wait_for(said.asked.wait(), 20)
        time.sleep((peers.SILENT_LOOKS + 1) * peers.ASK_SECONDS)  # noqa: ASYNC251 - nothing else is to run
        # Whatever was due meanwhile happens.
        for _ in range(5):
            await asyncio.sleep(0)
        assert listening.peers.heard() == [Standing(3, 9)]
        said.moves.set()


@pytest.mark.usefixtures("asked_often")
async def test_a_leader_leaves_to_one_that_answers() -> None:
    async def never(*_: object) -> None:
        raise AssertionError("it is not its turn")

    said = Said(Standing(3))
    async with served(said) as port, Listening(port).scope() as listening:
        await listening.until(lambda: listening.peers.heard() == [Standing(3)])
        said.moves.clear()
        leaving = asyncio.create_task(Leadership(listening.peers, 1, lambda: 1, never, never).successor())
        # Long before it counts as one that hangs.
        done, _ = await asyncio.wait({leaving}, timeout=0.06)
        assert not done
        said.moves.set()
        await asyncio.wait_for(leaving, 20)


def test_schedulers_find_out_who_hangs_before_gateways_do() -> None:
    """These wait for one that takes over, and not for as long as pings may differ."""
    assert (peers.SILENT_LOOKS + 2) * peers.ASK_SECONDS + peers.ABSENT_SECONDS < rpc.ANSWER_SECONDS
