"""A scheduler's names: the table, and what is looked at."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from scheduler.admission import QueueBounds
from scheduler.core import Core
from scheduler.core_settings import CoreSettings
from scheduler.events import BlockCounts, GatewayAttached, Submitted, TimePassed, WorkerAttached
from scheduler.fleet_view import WorkerView
from scheduler.health import STUCK_SECONDS, UNMOVED_SECONDS, Health, SchedulerFacts, conditions
from scheduler.loop import Loop
from scheduler.policy import Policy
from scheduler.simulator.small import submission, worker_info
from tercet import rpc

SERVICE = "tercet.mesh.v1.Scheduler"
THERE = WorkerView(
    address="127.0.0.1:1",
    live=True,
    model="m",
    device="cpu",
    sequences=0,
    blocks_total=8,
    blocks=BlockCounts(8, 0, 0),
    steps=0,
    tokens=0,
    swap_blocks_total=0,
    swap_blocks_used=0,
    draining=False,
)
AWAY = dataclasses.replace(THERE, live=False)
HUNG = dataclasses.replace(AWAY, hung=True)
LEAVING = dataclasses.replace(THERE, draining=True)
WELL = SchedulerFacts(
    stopping=False, stands_by=False, stuck_s=0.0, unmoved_s=0.0, workers=(THERE, THERE), certificate="", crowded=()
)


@pytest.mark.parametrize(
    ("facts", "lost"),
    [
        ({}, set()),
        ({"stopping": True}, {"", "ready", SERVICE}),
        ({"stuck_s": STUCK_SECONDS - 1}, set()),
        ({"stuck_s": STUCK_SECONDS}, {"", "live", "ready", SERVICE}),
        ({"workers": ()}, {"ready", "intact"}),
        ({"workers": (THERE, AWAY)}, {"intact"}),
        ({"workers": (THERE, LEAVING)}, {"intact"}),
        ({"workers": (THERE, HUNG)}, {"intact"}),
        ({"workers": (HUNG, HUNG)}, {"ready", "intact"}),
        ({"unmoved_s": UNMOVED_SECONDS - 1}, set()),
        ({"unmoved_s": UNMOVED_SECONDS}, {"ready", "intact"}),
        ({"workers": (AWAY, AWAY)}, {"ready", "intact"}),
        ({"workers": (LEAVING, AWAY)}, {"ready", "intact"}),
        ({"workers": (AWAY, AWAY), "stands_by": True}, set()),
        ({"certificate": "its certificate has expired"}, {"intact"}),
        ({"crowded": ("no room for class batch",)}, {"has-room"}),
    ],
)
def test_what_is_lost_by_what(facts: dict[str, Any], lost: set[str]) -> None:
    found = conditions(dataclasses.replace(WELL, **facts), SERVICE)
    assert found.keys() == {"", "live", "ready", SERVICE, "intact", "has-room"}
    assert {name for name, reasons in found.items() if reasons} == lost


def test_reasons_count_and_name_no_address() -> None:
    found = conditions(dataclasses.replace(WELL, workers=(THERE, AWAY, LEAVING, HUNG)), SERVICE)
    assert found["intact"] == (
        "1 of 4 workers hung",
        "1 of 4 workers not connected",
        "1 of 4 workers about to stop",
    )


class Bench:
    """A loop that the test drives, behind a look at it; time is the test's."""

    def __init__(self) -> None:
        self.now = 0.0
        settings = CoreSettings(("host:1", "host:2"), Policy(4, 0), QueueBounds(1, 1000))
        self.loop = Loop(Core(settings), lambda: self.now)
        self.health = Health(rpc.Server(), SERVICE, self.loop, None, lambda: self.now)
        self.gateway, _ = self.loop.open_gateway()
        self.loop.post(GatewayAttached(self.gateway, "gateway-1"))
        self._keys = 0

    def attach(self, address: str) -> None:
        link, _ = self.loop.open_worker()
        self.loop.post(WorkerAttached(link, address, worker_info()))

    def submit(self) -> None:
        self._keys += 1
        self.loop.post(Submitted(self.gateway, submission(self._keys)))

    async def run_for(self, seconds: int, *, each: Callable[[], None] = lambda: None) -> dict[str, tuple[str, ...]]:
        """Looks once a second while the loop runs; what does not hold at the end, and why."""
        task = asyncio.create_task(self.loop.run())
        for _ in range(seconds):
            each()
            for _ in range(5):
                await asyncio.sleep(0)
            assert not self.loop.num_unhandled
            lost = self.lost()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return lost

    def lost(self) -> dict[str, tuple[str, ...]]:
        self.now += 1.0
        return {name: reasons for name, reasons in self.health.look().items() if reasons}


async def test_workers_come_one_by_one() -> None:
    bench = Bench()
    assert (await bench.run_for(1)).keys() == {"ready", "intact"}
    bench.attach("host:1")
    assert await bench.run_for(1) == {"intact": ("1 of 2 workers not connected",)}
    bench.attach("host:2")
    assert await bench.run_for(1) == {}


async def test_a_queue_that_refuses_has_no_room_until_it_has_been_calm() -> None:
    bench = Bench()
    bench.attach("host:1")
    bench.attach("host:2")
    # Both workers are full of what nobody computes here; then one waits, and the others are refused.
    for _ in range(2 * worker_info().max_num_seqs + 2):
        bench.submit()
    assert await bench.run_for(1) == {}
    assert await bench.run_for(4, each=bench.submit) == {"has-room": ("no room for class interactive",)}
    lost = await bench.run_for(9)
    assert "has-room" in lost
    lost = await bench.run_for(3)
    assert "has-room" not in lost


async def test_a_loop_that_handles_nothing_is_not_live() -> None:
    bench = Bench()
    bench.attach("host:1")
    for _ in range(int(STUCK_SECONDS)):
        lost = bench.lost()
        assert "live" not in lost
    assert "live" in bench.lost()
    # It goes on: no harm is done.
    lost = await bench.run_for(1)
    assert "live" not in lost


async def test_workers_that_all_owe_a_report_for_long_are_not_ready() -> None:
    bench = Bench()
    bench.attach("host:1")
    bench.submit()
    assert "ready" not in await bench.run_for(5)
    lost = await bench.run_for(25, each=lambda: bench.loop.post(TimePassed()))
    assert lost["ready"][0].startswith("no worker has moved for")
