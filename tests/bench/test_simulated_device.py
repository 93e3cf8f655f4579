"""A simulated worker on a clock: what it reports is the worker's, what it traces is when."""

from __future__ import annotations

import queue
import threading

from bench.simulated_codec import decode_command, encode_event
from bench.simulated_device import TOKEN, SameToken, SimulatedDevice
from scheduler.actions import NewSequence, Plan, Release, ReleaseCause, Resume, WorkerCommand
from scheduler.events import Event, PlanEnded, SequenceReleased, StepReported
from scheduler.link import command_to_proto, event_from_proto
from scheduler.simulator.cost import StepCost
from scheduler.simulator.small import GREEDY, worker_info
from scheduler.simulator.worker import SimulatedWorker

NEW = NewSequence(1, (1, 2, 3), 6, (9,), GREEDY, b"salt", ((2, 77),))


def test_messages_are_those_of_the_scheduler() -> None:
    commands: list[WorkerCommand] = [
        NEW,
        Plan(2, 4, ((1, 3),), (1, 5), 1),
        Release((1, 2), ReleaseCause.SWAP),
        Resume((4,)),
    ]
    assert [decode_command(command_to_proto(command)) for command in commands] == commands


def _until_ended(events: queue.SimpleQueue[list[Event]], plan_seq: int) -> list[Event]:
    seen: list[Event] = []
    while True:
        for event in events.get(timeout=10):
            # Nothing is lost on the way to the scheduler.
            assert event_from_proto(encode_event(event), 1) == event
            seen.append(event)
            if isinstance(event, PlanEnded) and event.plan_seq == plan_seq:
                return seen


def test_steps_take_their_time_and_a_plan_that_revokes_is_noted() -> None:
    events: queue.SimpleQueue[list[Event]] = queue.SimpleQueue()
    worker = SimulatedWorker(1, worker_info(), caching=False, verify=False, cost=StepCost(0.002), text=SameToken())
    device = SimulatedDevice(worker, events.put)
    device.start()
    try:
        device.submit([NEW, Plan(1, 100, ((1, 3),), (1,), 0), Plan(2, 100, (), (), 0)])
        device.submit([Release((2,), ReleaseCause.CANCEL)])
        ended = _until_ended(events, 2)
        tokens = [event.token_ids for event in ended if isinstance(event, StepReported)]
        assert tokens.count((TOKEN,)) + tokens.count((TOKEN, TOKEN)) == 3
        second = NewSequence(3, (1, 2, 3), 100, (), GREEDY, b"", ())
        device.submit([second, Plan(3, 90, ((3, 3),), (3,), 0)])
        newcomer = NewSequence(4, (1,), 3, (), GREEDY, b"", ())
        device.submit([newcomer, Plan(4, 5, ((4, 1),), (4,), 3)])
        seen = _until_ended(events, 4)
        assert any(isinstance(event, PlanEnded) and event.revoked for event in seen)
        device.submit([Release((3,), ReleaseCause.CANCEL)])
        while not any(isinstance(event, SequenceReleased) for event in events.get(timeout=10)):
            pass
    finally:
        device.stop()
    trace = device.trace
    assert len(trace.steps) == worker.steps_run
    assert all(end - begin >= 0.002 - 1e-9 for begin, end in trace.steps)
    assert all(later[0] >= earlier[1] for earlier, later in zip(trace.steps, trace.steps[1:], strict=False))
    ((received, begun, sequence_id),) = trace.revocations
    assert received <= begun
    assert sequence_id == 4
    # After plan 4 sequence 3 was there and no plan was.
    assert trace.idle


def test_it_stops_in_the_middle_of_its_last_step() -> None:
    events: queue.SimpleQueue[list[Event]] = queue.SimpleQueue()
    worker = SimulatedWorker(1, worker_info(), caching=False, verify=False, cost=StepCost(0.2), text=SameToken())
    device = SimulatedDevice(worker, events.put)
    device.start()
    device.submit([NEW, Plan(1, 1, ((1, 3),), (1,), 0)])
    while not worker.busy:
        pass
    stopping = threading.Thread(target=device.stop, daemon=True)
    stopping.start()
    stopping.join(20)
    assert not stopping.is_alive()
