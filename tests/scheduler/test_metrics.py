"""What a scheduler tells Prometheus, on a simulated mesh."""

from __future__ import annotations

from collections import Counter

import pytest

from scheduler.actions import Plan, Release, ReleaseCause
from scheduler.admission import QueueBounds
from scheduler.core import Core
from scheduler.core_settings import CoreSettings
from scheduler.events import GatewayAttached, Submitted, WorkerAttached
from scheduler.loop import Loop
from scheduler.loop_counts import LoopCounts
from scheduler.metrics import METRICS, WORKER_STATES, read
from scheduler.policy import Policy
from scheduler.simulator.small import submission, worker_info
from tercet.metrics.metric import Kind


async def _run(loop: Loop) -> None:
    """Handles what was posted."""
    import asyncio
    import contextlib

    task = asyncio.create_task(loop.run())
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.fixture
async def loop() -> Loop:
    """Of a mesh with one worker of two slots, which has five requests, and has refused two."""
    made = Loop(Core(CoreSettings(("host:1", "host:2"), Policy(4, 0), QueueBounds(100, 1_000_000))), lambda: 100.0)
    link, _ = made.open_worker()
    made.post(WorkerAttached(link, "host:1", worker_info(max_num_seqs=2)))
    gateway, _ = made.open_gateway()
    made.post(GatewayAttached(gateway, "gateway-1"))
    for key in range(5):
        made.post(Submitted(gateway, submission(key, (1, 2, 3), traffic_class="rag")))
    made.post(Submitted(gateway, submission(7, (1, 2, 3), traffic_class="made up")))
    made.post(Submitted(gateway, submission(8, model="other")))
    await _run(made)
    return made


async def test_what_is_there_and_what_was_refused(loop: Loop) -> None:
    reading = read(loop, {"": (), "live": (), "ready": ("no worker is there",)}, leads=True)
    told = {metric.name: dict(reading.samples(metric)) for metric in METRICS}
    assert told["tercet_health"] == {("live",): True, ("ready",): False}
    assert told["tercet_scheduler_leading"] == {(): True}
    assert told["tercet_scheduler_gateways"] == {(): 1}
    states = {labels[0]: count for labels, count in told["tercet_scheduler_workers"].items()}
    assert states == dict.fromkeys(WORKER_STATES, 0) | {"moving": 1, "away": 1}
    assert told["tercet_scheduler_requests_accepted_total"]["rag",] == 5
    waiting, running = (told[f"tercet_scheduler_requests_{name}"]["rag",] for name in ("waiting", "running"))
    assert (waiting, running) == (3, 2)
    assert told["tercet_scheduler_tokens_waiting"]["rag",] == 9
    assert told["tercet_scheduler_oldest_waiting_seconds"] == {
        ("interactive",): 0,
        ("rag",): 0,
        ("batch",): 0,
        ("",): 0,
    }
    assert sum(told["tercet_scheduler_requests_refused_total"].values()) == 2
    assert {reason for _, reason in told["tercet_scheduler_requests_refused_total"]} == {
        "INVALID_FIELD", "NO_WORKER",
    }  # fmt: skip
    assert told["tercet_scheduler_promised_seconds"]["interactive", "ttft"] == 1.0
    assert told["tercet_scheduler_promised_ratio"]["interactive",] == 0.95
    assert ("batch",) not in told["tercet_scheduler_promised_ratio"]
    steps = told["tercet_scheduler_plan_steps"][()]
    assert (steps.count, steps.total) == (2, 8.0)
    assert told["tercet_scheduler_round_seconds"][()].count == 1
    assert told["tercet_scheduler_events_total"][()] == 9


async def test_each_combination_of_labels_is_told_once_and_reasons_are_few(loop: Loop) -> None:
    for number in range(500):
        loop.count_refused("tenant", f"class-{number}", f"REASON_{number}", 3)
    reading = read(loop, {}, leads=True)
    for metric in METRICS:
        told = Counter(labels for labels, _ in reading.samples(metric))
        assert all(count == 1 for count in told.values()), metric.name
        assert len(told) < 40, metric.name
        for _, value in reading.samples(metric):
            assert (metric.kind is Kind.HISTOGRAM) is hasattr(value, "bounds")


def test_plans_are_counted_and_other_commands_are_not() -> None:
    counts = LoopCounts()
    for command in (Plan(1, 4, (), (), 0), Plan(2, 1, (), (), 1), Release((1,), ReleaseCause.CANCEL)):
        counts.command(command)
    assert (counts.plan_steps.count, counts.plan_steps.total, counts.plans_revoking) == (2, 5.0, 1)
