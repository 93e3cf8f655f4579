"""The recorder: bounded, cheap to keep, and never in the way of the loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import FOREVER, dumped, record, reread

from scheduler.admission import QueueBounds
from scheduler.core import Core
from scheduler.core_settings import CoreSettings
from scheduler.events import (
    BlockCounts,
    GatewayAttached,
    StepReported,
    Submitted,
    TenantsChanged,
    TimePassed,
    WorkerAttached,
    WorkerLost,
)
from scheduler.loop import Loop
from scheduler.plan_log import shape
from scheduler.plan_log.recorder import FREED_PER_ROUND, VALUES_PER_ROUND, Recorder, recorded_core
from scheduler.plan_log.replay import replay
from scheduler.plan_log.round import KeptStep
from scheduler.policy import Policy
from scheduler.simulator.mesh import VirtualMesh, submission
from scheduler.simulator.small import worker_info
from scheduler.tenant import NamedPlan
from tercet.errors import EngineFaultError, SwitchedOffError

SETTINGS = CoreSettings(("host:1",), Policy(4, 0), QueueBounds(10, 1000))


def started(max_rounds: int) -> Recorder:
    recorder = recorded_core(SETTINGS, max_rounds)[1]
    assert recorder is not None
    return recorder


def step(link: int, ids: tuple[int, ...], number: int = 0) -> StepReported:
    return StepReported(link, 1, number, ids, tuple(100 + each for each in ids), (), (), BlockCounts(1, 2, 3), 1000)


@settings(max_examples=30)
@given(max_rounds=st.integers(2, 60), rounds=st.integers(0, 200))
def test_it_keeps_between_half_and_all_of_the_bound(max_rounds: int, rounds: int) -> None:
    recorder = started(max_rounds)
    for number in range(rounds):
        recorder.note(float(number), [TimePassed()], [])
    file = reread(dumped(recorder))
    kept = [each.now for each in file.rounds]
    assert kept == list(range(rounds))[-len(kept) :] if kept else rounds < max_rounds
    assert min(rounds, max_rounds // 2) <= len(kept) <= max_rounds


@settings(max_examples=50)
@given(max_rounds=st.integers(4, 60), live=st.lists(st.sampled_from([0, 100, 1000]), max_size=200))
def test_whatever_lives_it_keeps_no_more_than_the_bound_and_at_least_a_quarter(
    max_rounds: int, live: list[int]
) -> None:
    recorder = started(max_rounds)
    with pytest.MonkeyPatch.context() as patch:
        for number, num_sequences in enumerate(live):
            patch.setattr(Core, "num_sequences", num_sequences)
            recorder.note(float(number), [TimePassed()], [])
            kept = [each.now for segment in recorder._segments for each in segment.rounds]
            assert kept == list(range(number + 1))[-len(kept) :]
            assert min(number + 1, max_rounds // 4) <= len(kept) <= max_rounds
    assert [each.now for each in reread(dumped(recorder)).rounds] == (kept if live else [])


def test_a_checkpoint_waits_for_a_moment_with_few_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = started(400)
    monkeypatch.setattr(Core, "num_sequences", 5000)
    for number in range(290):
        monkeypatch.setattr(Core, "num_sequences", 5000 + number)
        recorder.note(float(number), [TimePassed()], [])
    assert len(recorder._segments) == 1
    monkeypatch.setattr(Core, "num_sequences", 3)
    recorder.note(290.0, [TimePassed()], [])
    assert [len(segment.rounds) for segment in recorder._segments] == [291, 0]


def test_what_is_kept_no_more_is_freed_in_small_parts() -> None:
    recorder = started(1000)
    longest = 0
    before = 0
    for number in range(1200):
        recorder.note(float(number), [TimePassed()], [])
        longest = max(longest, len(recorder._gone))
        assert before - len(recorder._gone) <= FREED_PER_ROUND
        before = len(recorder._gone)
    assert longest >= 200
    assert not recorder._gone


def test_rounds_that_hold_much_are_fewer() -> None:
    recorder = started(100)
    size = VALUES_PER_ROUND * 10
    for number in range(100):
        ids = tuple(range(number, number + size))
        recorder.note(float(number), [step(1, ids, number)], [])
    file = reread(dumped(recorder))
    assert 5 <= len(file.rounds) <= 12
    assert file.rounds[-1].now == 99.0


def test_plans_of_tenants_count() -> None:
    recorder = started(100)
    plans = tuple(NamedPlan(f"t{index}") for index in range(VALUES_PER_ROUND))
    for number in range(100):
        recorder.note(float(number), [TenantsChanged(1, number, plans)], [])
    file = reread(dumped(recorder))
    assert 5 <= len(file.rounds) <= 12
    assert file.rounds[-1].events == (TenantsChanged(1, 99, plans),)


def test_the_same_sequences_are_kept_and_written_once() -> None:
    recorder = started(FOREVER)
    first, other = tuple(range(1000, 1256)), (7, 8)
    for number in range(50):
        # Equal, but another tuple each time, as they come from the wire.
        recorder.note(0.0, [step(1, (*first[:-1], first[-1]), number), step(2, other, number)], [])
    kept = [event for each in recorder._segments[-1].rounds for event in each.events]
    assert all(isinstance(event, KeptStep) for event in kept)
    assert len({id(event.sequence_ids) for event in kept}) == 2
    data = dumped(recorder)
    assert data.count(b"1255") == 1
    steps = [event for each in reread(data).rounds for event in each.events]
    assert [event.sequence_ids for event in steps if isinstance(event, StepReported)] == [first, other] * 50


def test_streams_that_are_gone_are_forgotten() -> None:
    recorder = started(FOREVER)
    for link in range(1, 2000):
        recorder.note(0.0, [step(link, (1, 2))], [])
        recorder.note(0.0, [WorkerLost(link)], [])
    assert not recorder._last_ids


def test_a_kept_step_has_all_of_a_report_but_its_tokens() -> None:
    assert {*KeptStep._fields} == StepReported.__dataclass_fields__.keys() - {
        "token_ids",
        "logprobs",
        "prompt_logprobs",
    }


def test_a_dump_is_of_its_moment_and_comes_in_small_parts() -> None:
    mesh = VirtualMesh()
    tape = record(mesh)
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    for key in range(200):
        mesh.submit(gateway, submission(key))
    parts = tape.dump(mesh.now, 0.0)
    first = next(parts)
    mesh.run()
    rest = list(parts)
    file = reread(b"".join([first, *rest]))
    assert len(file.rounds) == 202
    assert replay(file).equal
    assert rest
    assert max(map(len, [first, *rest])) <= 256 << 10
    assert len(reread(dumped(tape)).rounds) > 202


def test_a_round_larger_than_a_part_is_split() -> None:
    recorder = started(FOREVER)
    recorder.note(0.0, [step(1, tuple(range(10**6, 10**6 + 100_000)))], [])
    parts = list(recorder.dump(0.0, 0.0))
    assert len(parts) >= 3
    assert max(map(len, parts)) <= 256 << 10
    assert len(reread(b"".join(parts)).rounds) == 1


def test_no_rounds_no_recorder() -> None:
    core, recorder = recorded_core(SETTINGS, 0)
    assert recorder is None
    loop = Loop(core, lambda: 0.0, recorder)
    with pytest.raises(SwitchedOffError, match=r"scheduler\.plan_log_rounds") as caught:
        loop.dump_plan_log(0.0)
    assert caught.value.metadata == {"setting": "scheduler.plan_log_rounds"}


def test_a_class_it_does_not_know_stops_the_recorder_not_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    core, recorder = recorded_core(SETTINGS, 2)
    assert recorder is not None
    core.apply(GatewayAttached(1, "gateway-1"), 0.0)
    core.apply(WorkerAttached(1, "host:1", worker_info()), 0.0)
    known = {name: cls for name, cls in shape.CLASSES.items() if name != "Worker"}
    monkeypatch.setattr(shape, "CLASSES", MappingProxyType(known))
    monkeypatch.setattr(shape, "_shapes", {})
    for _ in range(3):
        recorder.note(0.0, [TimePassed()], [])
    with pytest.raises(EngineFaultError, match="Worker is not among the classes"):
        recorder.dump(0.0, 0.0)


async def test_the_loop_records_what_it_does() -> None:
    core, recorder = recorded_core(SETTINGS, 100)
    moments = iter(range(1000))
    loop = Loop(core, lambda: float(next(moments)), recorder)
    task = asyncio.create_task(loop.run())
    link, commands = loop.open_worker()
    loop.post(WorkerAttached(link, "host:1", worker_info()))
    gateway, _ = loop.open_gateway()
    loop.post(GatewayAttached(gateway, "gateway-1"))
    await asyncio.sleep(0)
    loop.post(Submitted(gateway, submission(1)))
    await asyncio.wait_for(commands.take(), 10)
    data = b"".join(loop.dump_plan_log(1_800_000_000.0))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    file = reread(data)
    assert [type(event).__name__ for each in file.rounds for event in each.events] == [
        "WorkerAttached",
        "GatewayAttached",
        "Submitted",
    ]
    assert [command["is"] for each in file.rounds for command in each.commands] == ["NewSequence", "Plan", "Plan"]
    assert replay(file).equal
    header = json.loads(data.splitlines()[0])
    assert header["written"] == "2027-01-15T08:00:00+00:00"
