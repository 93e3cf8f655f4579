"""Workers that are too small, lost or broken, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from outcomes import judge, prepared, releases, settle

from scheduler.actions import DropWorker, Log, ReleaseCause
from scheduler.admission import QueueBounds
from scheduler.events import (
    AddressesChanged,
    BlockCounts,
    Ended,
    EndReason,
    PlanEnded,
    StepReported,
    WorkerAttached,
    WorkerLost,
)
from scheduler.sequence import MAX_LOSSES
from scheduler.simulator.mesh import WORKER_GRACE_S, VirtualMesh
from scheduler.simulator.small import submission, worker_info
from scheduler.simulator.worker import SimulatedWorker
from tercet.errors import EngineFaultError


def test_a_pool_that_is_too_small_for_all_preempts_the_latest_and_changes_no_text() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=12)])
    calls = [mesh.submit(gateway, submission(key, (key, 2, 3), 36)) for key in range(1, 5)]
    settle(mesh)
    for call in calls:
        judge(call)
        assert call.ends[0].reason is EndReason.LENGTH
    assert mesh.core.view().preemptions > 0
    victims = {key for release in releases(mesh, ReleaseCause.PREEMPT) for key in release.sequence_ids}
    assert 1 not in victims
    # First come, first served: they end in order.
    assert sorted(calls, key=lambda call: call.times[-1]) == calls


def test_a_preempted_sequence_gets_a_token_before_it_is_preempted_again() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=10, block_size=2)], num_steps=8)
    calls = [mesh.submit(gateway, submission(key, (key,), 17)) for key in range(1, 4)]
    settle(mesh)
    for call in calls:
        judge(call)
    assert 0 < mesh.core.view().preemptions < sum(len(call.tokens) for call in calls)


def test_a_lost_worker_is_a_pause_and_the_other_takes_over() -> None:
    mesh = VirtualMesh([worker_info(), worker_info()])
    gateway = mesh.attach_gateway()
    first, _ = mesh.attach_worker(0), mesh.attach_worker(1)
    calls = [mesh.submit(gateway, submission(key, (key,), 40)) for key in range(1, 7)]
    mesh.run(until=0.15)
    assert {len(worker.sequences) for worker in mesh.workers.values()} == {3}
    mesh.lose_worker(first)
    settle(mesh)
    for call in calls:
        judge(call)
        assert call.ends[0].reason is EndReason.LENGTH
    assert gateway.pools is not None
    assert gateway.pools.pools[0].workers_live == 1


def test_without_a_worker_the_grace_ends_with_what_was_emitted() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=1)])
    begun = mesh.submit(gateway, submission(1, max_tokens=90))
    queued = mesh.submit(gateway, submission(2))
    mesh.run(until=0.2)
    lost_at = mesh.now
    mesh.lose_worker(next(iter(mesh.workers.values())))
    assert mesh.submit(gateway, submission(3)).refused == "NO_WORKER"
    settle(mesh)
    assert mesh.now == pytest.approx(lost_at + WORKER_GRACE_S)
    failure = begun.ends[0].failure
    assert failure is not None
    assert failure.reason == "WORKER_LOST"
    assert failure.metadata["tokens_emitted"] == str(len(begun.tokens)) != "0"
    assert failure.retry_after_s is None
    assert queued.ends[0].failure is not None
    assert queued.ends[0].failure.reason == "NO_WORKER"


def test_a_restarted_worker_is_told_from_a_new_stream_to_the_same() -> None:
    mesh, _ = prepared(infos=[worker_info()])
    mesh.post(WorkerLost(1))
    mesh.post(WorkerAttached(2, "host:1", worker_info()))
    mesh.post(WorkerLost(2))
    mesh.post(WorkerAttached(3, "host:1", worker_info(epoch=2)))
    attached = [log.fields for log in mesh.logs if log.event == "worker_attached"]
    assert [(fields["epoch"], fields["restarted"]) for fields in attached] == [(1, False), (1, False), (2, True)]


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("behind", [0, 3])
def test_a_request_that_brings_down_every_worker_ends_and_no_other_does(before: int, behind: int) -> None:
    mesh, gateway = prepared(num_steps=2)
    innocent = [mesh.submit(gateway, submission(key, (key, 2))) for key in range(1, before + 1)]
    poison = mesh.submit(gateway, submission(10, (13, 13)))
    innocent += [mesh.submit(gateway, submission(key, (key, 2))) for key in range(11, behind + 11)]
    begin = mesh._boundary

    def crash(worker: SimulatedWorker) -> None:
        if not any(state.new.token_ids[:2] == (13, 13) for state in worker.sequences.values()):
            begin(worker)
        elif worker.link in mesh.workers:
            assert worker.link <= MAX_LOSSES
            mesh.lose_worker(worker)
            mesh.at(mesh.now + 1, mesh.attach_worker)

    mesh._boundary = crash  # type: ignore[method-assign]
    settle(mesh)
    judge(poison, failures={"WORKER_LOST"})
    failure = poison.ends[0].failure
    assert failure is not None
    assert (failure.reason, failure.retry_after_s) == ("WORKER_LOST", None)
    assert failure.metadata["placements"] == str(MAX_LOSSES)
    assert failure.metadata["tokens_emitted"] == "0"
    innocent.append(mesh.submit(gateway, submission(20)))
    settle(mesh)
    for call in innocent:
        judge(call)
        assert call.ends[0].reason is EndReason.LENGTH


def test_a_request_that_advances_outlives_any_number_of_workers() -> None:
    mesh, gateway = prepared(num_steps=1)
    call = mesh.submit(gateway, submission(1, (1,), 4 * MAX_LOSSES))
    seen = 0

    def lose() -> None:
        nonlocal seen
        if call.over:
            return
        if len(call.tokens) > seen:
            seen = len(call.tokens)
            mesh.lose_worker(next(iter(mesh.workers.values())))
            mesh.attach_worker()
        mesh.at(mesh.now + 0.001, lose)

    lose()
    settle(mesh)
    judge(call)
    assert call.ends[0].reason is EndReason.LENGTH
    assert len(mesh.workers) == 1
    assert next(iter(mesh.workers)) > 2 * MAX_LOSSES


def test_a_smaller_worker_that_comes_back_does_not_block_the_queue() -> None:
    mesh, gateway = prepared(infos=[worker_info(), worker_info(num_blocks=6)])
    large = mesh.submit(gateway, submission(1, [1] * 40, 40))
    small = mesh.submit(gateway, submission(2, (2,), 20))
    mesh.run(until=0.1)
    lost_at = mesh.now
    mesh.lose_worker(next(iter(mesh.workers.values())))
    mesh.attach_worker(1)
    settle(mesh)
    judge(small)
    assert small.ends[0].reason is EndReason.LENGTH
    assert large.ends[0].failure is not None
    assert large.ends[0].failure.reason == "WORKER_LOST"
    # It waits as long for the one that could hold it as if there were no other.
    assert mesh.now == pytest.approx(lost_at + WORKER_GRACE_S)


def test_what_only_one_worker_can_hold_waits_for_it_and_stands_in_nobodys_way() -> None:
    mesh, gateway = prepared(infos=[worker_info(), worker_info(num_blocks=6, max_num_seqs=2)])
    large = [mesh.submit(gateway, submission(key, [key] * 40, 40, priority=-1)) for key in range(1, 7)]
    mesh.attach_worker(1)
    mesh.run(until=0.1)
    mesh.lose_worker(mesh.workers[1])
    small = [mesh.submit(gateway, submission(key, (key,), 10)) for key in range(11, 14)]
    assert mesh.submit(gateway, submission(20, [1] * 40, 40)).refused == "KV_NEVER_FITS"
    mesh.run(until=WORKER_GRACE_S - 0.1)
    assert all(call.over for call in small)
    assert not any(call.over for call in large)
    mesh.attach_worker(0)
    settle(mesh)
    for call in (*large, *small):
        judge(call)
        assert call.ends[0].reason is EndReason.LENGTH


def test_a_preempted_sequence_is_not_held_up_by_the_queue_bound() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=12)], bounds=QueueBounds(1, 1000))
    calls = [mesh.submit(gateway, submission(key, (key, 2, 3), 36)) for key in range(1, 4)]
    settle(mesh)
    assert mesh.core.view().preemptions > 0
    for call in calls:
        judge(call)
        assert call.ends[0].reason is EndReason.LENGTH


def test_a_fault_of_the_worker_ends_one_request_only() -> None:
    mesh, gateway = prepared()
    broken = mesh.submit(gateway, submission(1, max_tokens=20))
    good = mesh.submit(gateway, submission(2, max_tokens=20))
    (worker,) = mesh.workers.values()
    finish = worker.finish

    def failing() -> list[object]:
        events = finish()
        sequence = worker.sequences.get(1)
        if worker.steps_run == 3 and sequence is not None:
            used = len(sequence.blocks)
            freed = worker._forget(1)
            report = events[0]
            assert isinstance(report, StepReported)
            fault = Ended(1, EndReason.FAILED, 0, EngineFaultError("device fault"), used, freed)
            events = [replace(each, blocks=worker.pool.counts) for each in events]  # type: ignore[type-var]
            events[0] = replace(events[0], ended=(fault,))  # type: ignore[type-var,call-arg]
        return events  # type: ignore[return-value]

    worker.finish = failing  # type: ignore[method-assign,assignment]
    settle(mesh)
    assert broken.ends[0].failure is not None
    assert broken.ends[0].failure.reason == "ENGINE_FAULT"
    judge(good)
    assert good.ends[0].reason is EndReason.LENGTH


def test_a_worker_that_runs_nothing_is_dropped() -> None:
    mesh, gateway = prepared()
    mesh.submit(gateway, submission(1))
    core = mesh.core
    counts = BlockCounts(32, 0, 0)
    actions = [action for seq in range(1, 9) for action in core.handle(PlanEnded(1, seq, 0, False, counts), mesh.now)]
    assert any(isinstance(action, DropWorker) for action in actions)


def test_a_step_of_an_unknown_plan_drops_the_worker() -> None:
    mesh, gateway = prepared()
    mesh.submit(gateway, submission(1))
    report = StepReported(1, 99, 0, (), (), (), (), BlockCounts(32, 0, 0))
    assert any(isinstance(action, DropWorker) for action in mesh.core.handle(report, mesh.now))


def test_a_report_that_is_missing_drops_the_worker_and_no_token_behind_the_gap_is_taken() -> None:
    mesh, gateway = prepared(delay=0.0)
    call = mesh.submit(gateway, submission(1, max_tokens=30))
    mesh.run(until=0.015)
    core, counts = mesh.core, BlockCounts(31, 0, 1)
    seen = len(call.tokens)
    actions = core.handle(StepReported(1, 1, 2, (1,), (7,), (), (), counts), mesh.now)
    assert [action.why for action in actions if isinstance(action, DropWorker)] == [
        "reported step 2 of plan 1, which is not the next one of its plan"
    ]
    for report in (StepReported(1, 1, 1, (1,), (7,), (), (), counts), PlanEnded(1, 1, 2, False, counts)):
        assert core.handle(report, mesh.now) == []
    assert len(core._mesh.sequences[1].token_ids) == 3 + seen
    mesh.lose_worker(mesh.workers[1])
    mesh.attach_worker()
    settle(mesh)
    judge(call)
    assert call.ends[0].reason is EndReason.LENGTH


@pytest.mark.parametrize("steps_run", [0, 2])
def test_a_plan_that_ends_after_other_steps_than_it_reported_drops_the_worker(steps_run: int) -> None:
    mesh, gateway = prepared(delay=0.0)
    mesh.submit(gateway, submission(1, max_tokens=30))
    mesh.run(until=0.015)
    actions = mesh.core.handle(PlanEnded(1, 1, steps_run, False, BlockCounts(31, 0, 1)), mesh.now)
    assert any(isinstance(action, DropWorker) for action in actions)
    assert any(log.event == "worker_dropped" for log in actions if isinstance(log, Log))


def test_a_worker_of_a_new_revision_replaces_the_pool() -> None:
    mesh, gateway = prepared(infos=[worker_info()])
    mesh.lose_worker(next(iter(mesh.workers.values())))
    mesh.post(WorkerAttached(9, "host:1", worker_info(model_revision="r2")))
    assert gateway.pools is not None
    assert [(pool.model_revision, pool.workers_live) for pool in gateway.pools.pools] == [("r2", 1)]
    assert mesh.submit(gateway, submission(1)).refused == "REVISION_MISMATCH"


def test_gateways_are_told_when_every_worker_is_known() -> None:
    mesh = VirtualMesh([worker_info()] * 2)
    gateway = mesh.attach_gateway()
    told = [gateway.pools is not None and gateway.pools.complete]
    for move in (mesh.attach_worker, lambda: mesh.attach_worker(1), lambda: mesh.lose_worker(mesh.workers[1])):
        move()
        assert gateway.pools is not None
        told.append(gateway.pools.complete)
    # What one that is away serves is known.
    assert told == [False, False, True, True]
    for addresses in (("host:1", "host:2", "host:3"), ("host:1",)):
        mesh.post(AddressesChanged(addresses))
        told.append(gateway.pools.complete)
    assert told[4:] == [False, True]


def test_how_fast_queues_move_is_known_of_pools_that_there_are() -> None:
    """Each time another model, on the same worker."""
    mesh = VirtualMesh([worker_info(model_revision=f"r{number}") for number in range(4)])
    gateway = mesh.attach_gateway()
    for number in range(4):
        worker = mesh.attach_worker(number)
        mesh.submit(gateway, submission(number, model_revision=f"r{number}"))
        mesh.run(until=mesh.now + 5.0)
        assert gateway.calls[number].over
        mesh.lose_worker(worker)
        mesh.run(until=mesh.now + 60.0)
    assert {revision for _, revision, _ in mesh.core._mesh.paces} == {"r3"}
