"""Who waits for too long, or has a deadline that passes, in the real core."""

from __future__ import annotations

from typing import Any

import pytest
from core_door import GATEWAY, SLOTS, Door, full
from outcomes import judge, prepared, releases, settle

from scheduler.actions import Accepted, NewSequence, ReleaseCause, ToGateway, TokenBatch, ToWorker
from scheduler.admission import AdmissionMode, QueueBounds
from scheduler.events import EndReason, Submitted, TimePassed, WorkerAttached, WorkerLost
from scheduler.overdue import LOOK_SECONDS
from scheduler.simulator.mesh import VirtualMesh
from scheduler.simulator.small import submission, worker_info
from scheduler.traffic_class import TrafficClass


def expiring(seconds: float, **changes: Any) -> tuple[TrafficClass, ...]:
    return (TrafficClass("interactive", 0, 0.0, max_queue_s=seconds, **changes),)


def test_those_who_waited_for_too_long_are_not_all_told_the_same_moment() -> None:
    door = Door(classes=expiring(5.0))
    full(door)
    for _ in range(4):
        door.accept()
    door.now = 5.0
    told = [each.message for each in door.handle(TimePassed()) if isinstance(each, ToGateway)]
    ends = [end for each in told if isinstance(each, TokenBatch) for end in each.ends]
    # No later than as if they had waited once more, but for the order.
    assert [end.failure.retry_after_s for end in ends if end.failure] == [5.0, 6.0, 7.0, 8.0]


def test_who_waits_for_too_long_is_told_so() -> None:
    mesh = VirtualMesh(
        [worker_info(max_num_seqs=1)], classes=expiring(0.5), admission_mode=AdmissionMode.OFF, step_time=0.01
    )
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    first = mesh.submit(gateway, submission(1, max_tokens=80))
    waiting = [mesh.submit(gateway, submission(key, max_tokens=4, n=n)) for key, n in ((2, 1), (3, 1))]
    settle(mesh)
    judge(first)
    for call in waiting:
        (end,) = call.ends
        assert end.failure is not None
        assert end.failure.reason == "QUEUE_EXPIRED"
        assert end.failure.retry_after_s
        assert not call.tokens
    started = [each.command.sequence_id for each in mesh.sent if isinstance(each.command, NewSequence)]
    assert started == list(first.sequence_ids)
    assert not releases(mesh, ReleaseCause.CANCEL)


def test_an_hour_in_the_queue_ends_on_time() -> None:
    door = Door(classes=expiring(3600.0))
    full(door)
    door.now = 1.0
    door.accept(n=3)
    # Meanwhile it looks whether the worker moves.
    assert door.core.wake_at() == 1.0 + LOOK_SECONDS
    assert door.core._mesh.next_alarm() == 3601.0
    door.now = 3600.9
    assert not [each for each in door.handle(TimePassed()) if isinstance(each, ToGateway)]
    door.now = 3601.0
    ends = [each.message for each in door.handle(TimePassed()) if isinstance(each, ToGateway)]
    assert len(ends) == 3
    assert door.core.wake_at() == 3600.9 + LOOK_SECONDS


def test_a_preempted_request_is_never_refused_by_a_bound_nor_too_old() -> None:
    """Short of blocks, some give way again and again, for longer than their class lets anybody wait."""
    mesh = VirtualMesh(
        [worker_info(num_blocks=20)],
        classes=expiring(0.3),
        bounds=QueueBounds(1, 10),
        admission_mode=AdmissionMode.OFF,
        step_time=0.02,
    )
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    calls = []
    for key in range(6):
        mesh.at(0.03 * key, lambda key=key: calls.append(mesh.submit(gateway, submission(key, [key] * 8, 30))))
    settle(mesh)
    preempted = {log.fields["sequence_id"] for log in mesh.logs if log.event == "preempted"}
    assert preempted
    long_ago = 0
    for call in calls:
        if preempted & set(call.sequence_ids):
            judge(call)
            assert call.ends[0].reason is EndReason.LENGTH
            long_ago += call.times[-1] - call.times[0] > 0.5
    assert long_ago
    # The bounds were there all the time.
    assert any(call.refused == "QUEUE_FULL" for call in calls)


@pytest.mark.parametrize("lose", [False, True])
def test_what_lost_its_worker_waits_for_another_however_old_it_is(lose: bool) -> None:
    mesh = VirtualMesh(classes=expiring(0.2), admission_mode=AdmissionMode.OFF)
    gateway = mesh.attach_gateway()
    worker = mesh.attach_worker()
    call = mesh.submit(gateway, submission(1, max_tokens=30))
    if lose:
        mesh.at(0.1, lambda: mesh.lose_worker(worker))
        mesh.at(2.0, mesh.attach_worker)
    settle(mesh)
    judge(call)
    assert len(call.tokens) == 30


def test_an_expired_deadline_is_never_prefilled() -> None:
    mesh = VirtualMesh([worker_info(max_num_seqs=1)], admission_mode=AdmissionMode.OFF, step_time=0.01)
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    first = mesh.submit(gateway, submission(1, max_tokens=60))
    late = [mesh.submit(gateway, submission(key, max_tokens=4, deadline_s=0.05 * key)) for key in range(2, 9)]
    settle(mesh)
    judge(first)
    for call in late:
        judge(call)
        assert call.ends[0].failure is not None
    started = [each.command.sequence_id for each in mesh.sent if isinstance(each.command, NewSequence)]
    assert started == list(first.sequence_ids)


@pytest.mark.parametrize("deadline_s", [1.0, None])
def test_who_is_overdue_neither_starts_nor_fills_the_queue_when_a_full_one_is_planned_between_two_events(
    deadline_s: float | None,
) -> None:
    """Two events come at once: a worker with room, and one more than the queue has room for."""
    door = Door(max_requests=1, classes=expiring(1.0 if deadline_s is None else 0.0))
    full(door)
    late = door.accept(deadline_s=deadline_s)
    door.now = 1.0
    newcomer = submission(5000)
    events = (
        WorkerLost(1),
        WorkerAttached(2, "host:1", worker_info(max_num_seqs=SLOTS + 2, epoch=2)),
        Submitted(GATEWAY, newcomer),
    )
    actions = [action for event in events for action in door.core.apply(event, door.now)]
    started = {
        each.command.sequence_id
        for each in actions
        if isinstance(each, ToWorker) and isinstance(each.command, NewSequence)
    }
    assert len(started) == SLOTS
    assert started.isdisjoint(late.sequence_ids)
    told = {
        each.message.request_key
        for each in actions
        if isinstance(each, ToGateway) and isinstance(each.message, Accepted)
    }
    assert told == {newcomer.request_key}


def test_a_deadline_ends_prefill_and_decode() -> None:
    mesh, gateway = prepared(step_time=0.01)
    prefill = mesh.submit(gateway, submission(1, [3] * 100, 8, deadline_s=0.035))
    decode = mesh.submit(gateway, submission(2, [4] * 3, 100, deadline_s=0.3))
    settle(mesh)
    for call in (prefill, decode):
        judge(call)
        assert call.ends[0].failure is not None
        assert call.ends[0].failure.reason == "DEADLINE_PASSED"
    assert not prefill.tokens
    assert 0 < len(decode.tokens) < 100
    assert all(log.fields["total_ms"] < 400 for log in mesh.logs if log.event == "request_finished")
