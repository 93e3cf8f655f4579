"""Sequences in a worker's host memory, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from outcomes import judge, prepared, releases, settle

from scheduler.actions import Release, ReleaseCause, Resume
from scheduler.events import BlockCounts, CancelReason, EndReason, SequenceReleased, WorkerLost
from scheduler.lifecycle import State
from scheduler.simulator.cost import StepCost
from scheduler.simulator.gateway import Call, VirtualGateway
from scheduler.simulator.mesh import VirtualMesh
from scheduler.simulator.small import submission, worker_info


def crowded(num_swap_blocks: int = 64, **options: object) -> tuple[VirtualMesh, VirtualGateway, list[Call]]:
    """Three sequences in a pool that is too small for them, on a worker whose host memory is next to free."""
    info = worker_info(num_blocks=12, num_swap_blocks=num_swap_blocks, swap_block_ns=1)
    # It learns what computing tokens again would take.
    mesh, gateway = prepared(infos=[info] * 2, costs=[StepCost(0.01, 1e-3)] * 2, **options)
    return mesh, gateway, [mesh.submit(gateway, submission(key, (key, 2, 3), 36)) for key in (1, 2, 3)]


def run_until_swapped(mesh: VirtualMesh) -> None:
    (worker,) = mesh.core._mesh.fleet.workers.values()
    while not worker.kept:
        mesh.run(until=mesh.now + 0.001)
        assert mesh.now < 10


def test_a_swapped_sequence_comes_back_with_its_text() -> None:
    mesh, _, calls = crowded()
    settle(mesh)
    for call in calls:
        judge(call)
        assert call.ends[0].reason is EndReason.LENGTH
    view = mesh.core.view()
    assert 0 < view.swaps <= view.preemptions
    assert view.workers[0].swap_blocks_total == 64
    assert view.workers[0].swap_blocks_used == 0
    assert [action for action in mesh.sent if isinstance(action.command, Resume)]
    finished = [log.fields for log in mesh.logs if log.event == "request_finished"]
    assert sum(fields["swaps"] for fields in finished) == view.swaps


def test_while_it_is_swapped_it_waits_in_the_queue_and_its_blocks_are_counted() -> None:
    mesh, _, _ = crowded()
    run_until_swapped(mesh)
    (worker,) = mesh.core._mesh.fleet.workers.values()
    (pool,) = mesh.core._mesh.fleet.pools.values()
    (sequence,) = worker.kept.values()
    assert sequence in pool.waiting
    assert (sequence.state, sequence.kept_on, sequence.link) == (State.QUEUED, worker.link, None)
    assert mesh.core.view().workers[0].swap_blocks_used == sequence.kept_blocks > 0
    settle(mesh)


def test_host_memory_that_is_full_means_recompute() -> None:
    mesh, _, calls = crowded(num_swap_blocks=1)
    settle(mesh)
    for call in calls:
        judge(call)
    assert mesh.core.view().swaps == 0 < mesh.core.view().preemptions


def test_the_cancel_of_a_swapped_sequence_drops_the_copy() -> None:
    mesh, gateway, calls = crowded()
    run_until_swapped(mesh)
    (worker,) = mesh.core._mesh.fleet.workers.values()
    (key,) = worker.kept
    mesh.cancel(gateway, calls[key - 1])
    # Not before the worker has said so.
    assert not calls[key - 1].cancelled
    assert not mesh.core.idle
    settle(mesh)
    assert calls[key - 1].cancelled
    assert releases(mesh, ReleaseCause.CANCEL)[0].sequence_ids == (key,)
    for call in calls:
        judge(call)


def test_a_cancel_that_crosses_the_swap_drops_the_copy_too() -> None:
    mesh, gateway, calls = crowded(delay=0.02)
    while not releases(mesh, ReleaseCause.SWAP):
        mesh.run(until=mesh.now + 0.0001)
        assert mesh.now < 10
    (swap,) = releases(mesh, ReleaseCause.SWAP)
    victim = calls[swap.sequence_ids[0] - 1]
    assert mesh.core._mesh.sequences[swap.sequence_ids[0]].state is State.PREEMPTED
    mesh.cancel(gateway, victim)
    settle(mesh)
    judge(victim)
    assert victim.cancelled
    assert releases(mesh, ReleaseCause.CANCEL)[0].sequence_ids == swap.sequence_ids


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_lost_worker_takes_the_copy_with_it(cancelled: bool) -> None:
    mesh, gateway, calls = crowded()
    run_until_swapped(mesh)
    (worker,) = mesh.core._mesh.fleet.workers.values()
    (key,) = worker.kept
    if cancelled:
        mesh.cancel(gateway, calls[key - 1])
    mesh.lose_worker(mesh.workers[1])
    sequence = mesh.core._mesh.sequences.get(key)
    assert (sequence is None) == cancelled
    assert sequence is None or (sequence.kept_on, sequence.kept_blocks, sequence.losses) == (None, 0, 0)
    mesh.attach_worker()
    settle(mesh)
    for call in calls:
        judge(call)


def test_a_worker_that_drains_keeps_a_swapped_sequence_until_another_one_can_take_it() -> None:
    mesh, _, calls = crowded()
    run_until_swapped(mesh)
    (worker,) = mesh.core._mesh.fleet.workers.values()
    (key,) = worker.kept
    mesh.drain_worker(mesh.workers[1])
    mesh.run(until=mesh.now + 0.002)
    assert key in worker.kept
    mesh.attach_worker(1)
    assert not worker.kept
    mesh.run(until=mesh.now + 0.002)
    assert key in [each for release in releases(mesh, ReleaseCause.PREEMPT) for each in release.sequence_ids]
    settle(mesh)
    for call in calls:
        judge(call)
        assert call.ends[0].reason is EndReason.LENGTH
    resumed = [action.command for action in mesh.sent if action.link == 1 and isinstance(action.command, Resume)]
    assert not any(key in command.sequence_ids for command in resumed)


def test_a_copy_that_was_dropped_is_not_computed_again_on_that_worker() -> None:
    """It would be there before the answer to the release of its copy."""
    info = worker_info(num_blocks=12, num_swap_blocks=64, swap_block_ns=1)
    mesh, gateway = prepared(infos=[info, replace(info, max_num_seqs=1)], costs=[StepCost(0.01, 1e-3)] * 2)
    calls = [mesh.submit(gateway, submission(key, (key, 2, 3), 36)) for key in (1, 2, 3)]
    mesh.run(until=0.05)
    mesh.attach_worker(1)
    calls.append(mesh.submit(gateway, submission(4, max_tokens=44)))
    worker, other = mesh.core._mesh.fleet.workers.values()
    while not worker.kept:
        mesh.run(until=mesh.now + 0.001)
        assert mesh.now < 10
    (key,) = worker.kept
    mesh.drain_worker(mesh.workers[1])
    mesh.run(until=mesh.now + 0.001)
    assert (worker.draining, worker.kept, list(other.sequences)) == (True, {}, [4])
    mesh.lose_worker(mesh.workers[2])
    mesh.run(until=mesh.now + 0.1)
    (pool,) = mesh.core._mesh.fleet.pools.values()
    assert set(pool.stranded) == {key, 4}
    mesh.attach_worker(1)
    settle(mesh)
    for call in calls:
        judge(call)
        assert call.ends[0].reason is EndReason.LENGTH


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_swap_that_a_drain_has_overtaken_is_undone_if_another_worker_can_take_over(num_workers: int) -> None:
    mesh, _, calls = crowded(delay=0.02)
    while not releases(mesh, ReleaseCause.SWAP):
        mesh.run(until=mesh.now + 0.0001)
        assert mesh.now < 10
    if num_workers == 2:
        mesh.attach_worker(1)
    # Said before it reads the release, and so heard before the answer.
    mesh.drain_worker(mesh.workers[1])
    state = mesh.core._mesh
    worker = state.fleet.workers[1]
    (key,) = releases(mesh, ReleaseCause.SWAP)[0].sequence_ids
    victim = state.sequences[key]
    while victim.state is State.PREEMPTED:
        mesh.run(until=mesh.now + 0.0001)
    story = [log.event for log in mesh.logs if log.event in ("preempted", "worker_draining", "released")]
    assert story == ["preempted", "worker_draining", "released"]
    commands = [action.command for action in mesh.sent if action.link == 1]
    assert (Release((key,), ReleaseCause.PREEMPT) in commands) == (num_workers == 2)
    assert (state.preemptions, state.swaps) == (1, 2 - num_workers)
    if num_workers == 2:
        assert (victim.link, victim.state) == (2, State.PREFILL)
    else:
        assert worker.kept == {key: victim}
    settle(mesh)
    for call in calls:
        judge(call)
        assert call.ends[0].reason is EndReason.LENGTH
    resumed = [action.link for action in mesh.sent if action.command == Resume((key,))]
    assert (1 in resumed) == (num_workers == 1)


def test_one_whose_swap_was_undone_does_not_come_back_there_either() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_swap_blocks=64), worker_info(max_num_seqs=1)], delay=0.0)
    mesh.submit(gateway, submission(1, max_tokens=30))
    mesh.run(until=0.1)
    mesh.attach_worker(1)
    mesh.submit(gateway, submission(2, max_tokens=30))
    state = mesh.core._mesh
    first, second = state.fleet.workers.values()
    assert list(second.sequences) == [2]
    first.sequences[1].become(State.PREEMPTED)
    first.draining = True
    mesh.core.handle(SequenceReleased(1, 1, True, 4, 4, BlockCounts(32, 0, 0), swapped=True), mesh.now)
    mesh.core.handle(WorkerLost(2), mesh.now)
    assert set(state.fleet.pools["tiny", "r1"].stranded) == {1, 2}


def test_the_stop_of_a_swapped_output() -> None:
    mesh, gateway, calls = crowded()
    run_until_swapped(mesh)
    (worker,) = mesh.core._mesh.fleet.workers.values()
    (key,) = worker.kept
    mesh.stop(gateway, calls[key - 1])
    settle(mesh)
    (end,) = calls[key - 1].ends
    assert end.reason is EndReason.CANCELLED
    assert end.account.blocks_used == 0
    finished = {log.fields["request_id"]: log.fields for log in mesh.logs if log.event == "request_finished"}
    assert finished[f"req-{key}"]["reason"] == CancelReason.STOP_STRING.name
