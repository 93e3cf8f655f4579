"""A worker's names: the table, and a device that never comes back."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
import torch

from tercet import rpc
from tercet.health import LOOK_SECONDS
from tests.worker.recall_model import CONFIG, RecallModel
from worker.executor import Executor
from worker.health import LATE_PART, Health, WorkerFacts, conditions
from worker.host_steps import HostSteps
from worker.kv_cache import KVCache
from worker.messages import Attach, Chunk, NewSequence, Plan, StepResult

SERVICE = "tercet.mesh.v1.Worker"
WELL = WorkerFacts(
    loading=False,
    unknown=False,
    stopping=False,
    dead=False,
    still_s=0.0,
    hung_s=100.0,
    without_kernels=False,
    certificate="",
    crowded=(),
)
ALL = {"", "live", "ready", SERVICE, "intact", "has-room"}


@pytest.mark.parametrize(
    ("facts", "lost"),
    [
        ({}, set()),
        ({"loading": True}, {"ready", SERVICE}),
        ({"unknown": True}, {"ready", SERVICE}),
        ({"stopping": True}, {"ready", SERVICE}),
        ({"still_s": 100.0 * LATE_PART - 1}, set()),
        ({"still_s": 100.0 * LATE_PART}, {"ready", SERVICE}),
        ({"still_s": 99.0}, {"ready", SERVICE}),
        ({"still_s": 100.0}, {"", "live", "ready", SERVICE}),
        ({"dead": True}, {"", "live", "ready", SERVICE}),
        ({"without_kernels": True}, {"intact"}),
        ({"certificate": "its certificate has expired"}, {"intact"}),
        ({"crowded": ("no room for calls",)}, {"has-room"}),
    ],
)
def test_what_is_lost_by_what(facts: dict[str, Any], lost: set[str]) -> None:
    found = conditions(dataclasses.replace(WELL, **facts), SERVICE)
    assert found.keys() == ALL
    assert {name for name, reasons in found.items() if reasons} == lost


class Hanging(HostSteps):
    """A device that computes until `hang`, then comes back from no step before `let_go`."""

    def __init__(self, kv_cache: KVCache) -> None:
        super().__init__(RecallModel(), kv_cache)  # type: ignore[arg-type]
        self.hangs = threading.Event()
        self.goes_on = threading.Event()
        self.at_it = threading.Event()

    def wait(self) -> bool:
        if self.hangs.is_set():
            self.at_it.set()
            self.goes_on.wait()
        return super().wait()


class Bench:
    """An executor on such a device, with a clock that only the test moves."""

    def __init__(self) -> None:
        kv_cache = KVCache(CONFIG, 64, 8, torch.float32, torch.device("cpu"))
        self.steps = Hanging(kv_cache)
        self.executor = Executor(self.steps, kv_cache)
        self.now = 0.0
        self.found = True
        self.health = Health(rpc.Server(), SERVICE, 100.0, lambda: self.found, lambda: self.now)
        self.stepped = threading.Event()
        self._num_plans = 0
        self.executor.start()
        self.executor.submit(Attach(lambda event: isinstance(event, StepResult) and self.stepped.set()))
        self.executor.submit(NewSequence(1, tuple(range(1, 9)), 100))
        self.plan(chunks=(Chunk(1, 8),), join=(1,))

    def plan(self, **fields: Any) -> None:
        self._num_plans += 1
        self.executor.submit(Plan(self._num_plans, 1, **fields))

    def lost_after(self, seconds: int) -> set[str]:
        """What does not hold after so many more seconds of looks."""
        for _ in range(int(seconds / LOOK_SECONDS)):
            self.now += LOOK_SECONDS
            found = self.health.look()
        return {name for name, reasons in found.items() if reasons}


@pytest.fixture
async def bench():
    made = Bench()
    yield made
    made.steps.goes_on.set()
    made.executor.stop()


async def test_a_device_that_does_not_come_back_is_not_live(bench: Bench) -> None:
    bench.health.loaded(bench.executor, without_kernels=False)
    assert bench.stepped.wait(20)
    # With a sequence and without a plan it has nothing to do.
    assert bench.lost_after(1000) == set()
    bench.steps.hangs.set()
    bench.plan()
    assert bench.steps.at_it.wait(20)
    assert bench.lost_after(5) == set()
    assert bench.lost_after(20) == {"ready", SERVICE}
    # Commands that come meanwhile are no sign of life.
    bench.plan()
    assert bench.lost_after(80) == {"", "live", "ready", SERVICE}
    bench.steps.hangs.clear()
    bench.stepped.clear()
    bench.steps.goes_on.set()
    assert bench.stepped.wait(20)
    assert bench.lost_after(2) == set()


async def test_a_thread_that_died_is_not_live(bench: Bench) -> None:
    bench.health.loaded(bench.executor, without_kernels=False)
    assert bench.lost_after(1) == set()
    bench.executor.stop()
    assert bench.lost_after(1) == {"", "live", "ready", SERVICE}


async def test_who_loads_is_live_and_who_stops_too(bench: Bench) -> None:
    assert bench.lost_after(1000) == {"ready", SERVICE}
    bench.health.loaded(bench.executor, without_kernels=False)
    assert bench.lost_after(1) == set()
    bench.found = False
    assert bench.lost_after(1) == {"ready", SERVICE}
    bench.found = True
    bench.health.stop()
    assert bench.lost_after(1) == {"ready", SERVICE}
