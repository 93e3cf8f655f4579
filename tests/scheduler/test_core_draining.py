"""Workers that are told to stop, in virtual time."""

from __future__ import annotations

import pytest
from outcomes import judge, prepared, settle

from scheduler.actions import NewSequence, Plan
from scheduler.events import EndReason
from scheduler.sequence import MAX_LOSSES
from scheduler.simulator.cost import StepCost
from scheduler.simulator.mesh import WORKER_GRACE_S, VirtualMesh
from scheduler.simulator.small import submission, worker_info


def starts_on(mesh: VirtualMesh, link: int, since: int = 0) -> int:
    sent = [action for action in mesh.sent[since:] if action.link == link]
    return sum(isinstance(action.command, NewSequence) for action in sent)


def test_its_sequences_move_to_another_worker_and_nothing_is_lost() -> None:
    mesh, gateway = prepared(infos=[worker_info(), worker_info()])
    first = mesh.workers[1]
    calls = [mesh.submit(gateway, submission(key, (key,), 40, n=1 + key % 3)) for key in range(1, 4)]
    mesh.run(until=0.1)
    mesh.attach_worker(1)
    mesh.drain_worker(first, 10.0)
    mesh.run(until=0.1 + 3 * mesh.step_time)
    assert mesh.core.view().workers[0].draining or first.link not in mesh.workers
    assert gateway.pools is not None
    assert gateway.pools.pools[0].workers_live == 1
    assert first.empty
    settle(mesh)
    for call in calls:
        judge(call)
        assert all(output.ends[0].reason is EndReason.LENGTH for output in call.outputs)
    finished = [log.fields for log in mesh.logs if log.event == "request_finished"]
    moves = sum(fields["moves"] for fields in finished)
    assert moves == sum(len(call.outputs) for call in calls)
    assert mesh.core.view().preemptions == sum(fields["preemptions"] for fields in finished)
    # It went as soon as it was empty.
    assert first.link not in mesh.workers


def test_a_group_that_has_not_begun_moves_as_one() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_batched_tokens=4)] * 2)
    call = mesh.submit(gateway, submission(1, [3] * 60, 9, n=3))
    mesh.run(until=0.05)
    mesh.attach_worker(1)
    mesh.drain_worker(mesh.workers[1], 10.0)
    settle(mesh)
    judge(call)
    news = [action.command for action in mesh.sent if action.link == 2 and isinstance(action.command, NewSequence)]
    assert [(new.sequence_id, len(new.forks)) for new in news[:1]] == [(1, 2)]


def test_alone_it_runs_what_it_has_to_the_end_and_gets_nothing_new() -> None:
    mesh, gateway = prepared()
    running = mesh.submit(gateway, submission(1, max_tokens=40))
    mesh.run(until=0.1)
    mesh.drain_worker(mesh.workers[1], 10.0)
    mesh.run(until=0.11)
    assert mesh.submit(gateway, submission(2)).refused == "NO_WORKER"
    assert gateway.pools is not None
    assert (gateway.pools.pools[0].workers_live, gateway.pools.pools[0].max_model_len) == (0, 0)
    settle(mesh)
    judge(running)
    assert running.ends[0].reason is EndReason.LENGTH
    assert starts_on(mesh, 1) == 1


def test_what_waits_stays_until_a_worker_comes() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=1)] * 2)
    running = mesh.submit(gateway, submission(1, max_tokens=60))
    waiting = mesh.submit(gateway, submission(2, max_tokens=9))
    mesh.run(until=0.1)
    mesh.drain_worker(mesh.workers[1], 10.0)
    mesh.run(until=0.2)
    assert not waiting.times
    # The one that comes takes over what runs, too.
    mesh.attach_worker(1)
    settle(mesh)
    for call in (running, waiting):
        judge(call)
        assert call.ends[0].reason is EndReason.LENGTH
    assert (starts_on(mesh, 1), starts_on(mesh, 2)) == (1, 2)


def test_what_waits_for_a_worker_that_never_comes_ends_after_the_grace() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=1)])
    mesh.submit(gateway, submission(1, max_tokens=90))
    waiting = mesh.submit(gateway, submission(2, max_tokens=9))
    mesh.run(until=0.1)
    mesh.drain_worker(mesh.workers[1])
    mesh.run(until=0.1 + WORKER_GRACE_S + 0.01)
    failure = waiting.ends[0].failure
    assert failure is not None
    assert failure.reason == "NO_WORKER"
    assert failure.retry_after_s
    settle(mesh)


@pytest.mark.parametrize("num_swap_blocks", [0, 64])
def test_what_gives_way_on_the_last_worker_comes_back_there(num_swap_blocks: int) -> None:
    info = worker_info(num_blocks=12, max_num_seqs=3, num_swap_blocks=num_swap_blocks, swap_block_ns=1)
    mesh, gateway = prepared(infos=[info], costs=[StepCost(0.2, 1e-3)])
    calls = [mesh.submit(gateway, submission(key, (key, 2, 3), 36)) for key in (1, 2, 3)]
    mesh.run(until=0.5)
    # More urgent and more of them than the worker has slots: they must not hide those that may come back.
    later = [mesh.submit(gateway, submission(key, max_tokens=4, priority=-100)) for key in range(4, 9)]
    mesh.drain_worker(mesh.workers[1])
    mesh.run(until=0.6)
    assert mesh.core.view().preemptions == 0
    settle(mesh)
    # Longer than anybody waits for a worker.
    assert calls[0].times[-1] - 0.5 > WORKER_GRACE_S
    view = mesh.core.view()
    assert view.preemptions > 0
    assert (view.swaps > 0) == (num_swap_blocks > 0)
    for call in calls:
        judge(call)
        assert call.ends[0].reason is EndReason.LENGTH
    for call in later:
        assert call.ends[0].failure is not None
        assert call.ends[0].failure.reason == "NO_WORKER"


def test_what_gave_way_goes_to_the_worker_that_comes_and_waits_for_it_no_longer_than_the_grace() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=12, num_swap_blocks=64, swap_block_ns=1)], step_time=0.2)
    calls = [mesh.submit(gateway, submission(key, (key, 2, 3), 36)) for key in (1, 2, 3)]
    mesh.run(until=0.5)
    mesh.drain_worker(mesh.workers[1])
    while not len(mesh.core._mesh.fleet.pools["tiny", "r1"].waiting):
        mesh.run(until=mesh.now + 0.01)
        assert mesh.now < 10
    mesh.run(until=mesh.now + 0.1)
    lost_at = mesh.now
    mesh.lose_worker(mesh.workers[1])
    settle(mesh)
    # The grace counts from the loss of the worker, not from its drain.
    assert mesh.now == pytest.approx(lost_at + WORKER_GRACE_S)
    for call in calls:
        assert call.ends[0].failure is not None
        assert call.ends[0].failure.reason == "WORKER_LOST"


def test_what_no_other_worker_can_hold_runs_on() -> None:
    mesh, gateway = prepared(infos=[worker_info(), worker_info(num_blocks=6)])
    large = mesh.submit(gateway, submission(1, [1] * 40, 40))
    small = mesh.submit(gateway, submission(2, (2,), 20))
    mesh.run(until=0.1)
    mesh.attach_worker(1)
    mesh.drain_worker(mesh.workers[1], 10.0)
    settle(mesh)
    for call in (large, small):
        judge(call)
        assert call.ends[0].reason is EndReason.LENGTH
    assert starts_on(mesh, 2) == 1


def test_what_waits_for_it_and_fits_nowhere_else_ends_after_the_grace() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=1), worker_info(num_blocks=6)])
    mesh.submit(gateway, submission(1, max_tokens=60))
    large = mesh.submit(gateway, submission(2, [1] * 40, 40))
    mesh.attach_worker(1)
    mesh.run(until=0.05)
    mesh.drain_worker(mesh.workers[1], 10.0)
    mesh.run(until=0.05 + WORKER_GRACE_S)
    assert not large.over
    mesh.run(until=0.06 + WORKER_GRACE_S)
    failure = large.ends[0].failure
    assert failure is not None
    assert failure.reason == "NO_WORKER"
    settle(mesh)


def test_its_end_is_no_loss() -> None:
    mesh, gateway = prepared(infos=[worker_info()])
    call = mesh.submit(gateway, submission(1, [3] * 20, 30, n=2))
    for _ in range(MAX_LOSSES + 2):
        mesh.run(until=mesh.now + 0.005)
        (worker,) = mesh.workers.values()
        mesh.drain_worker(worker)
        mesh.run(until=mesh.now + 0.002)
        mesh.lose_worker(worker)
        mesh.attach_worker()
    settle(mesh)
    judge(call)
    assert all(output.ends[0].reason is EndReason.LENGTH for output in call.outputs)
    (finished,) = (log.fields for log in mesh.logs if log.event == "request_finished")
    assert finished["moves"] >= 2 * (MAX_LOSSES + 2)


def test_a_cancel_of_what_is_on_its_way() -> None:
    mesh, gateway = prepared(infos=[worker_info(), worker_info()], delay=0.02)
    call = mesh.submit(gateway, submission(1, max_tokens=60, n=2))
    mesh.attach_worker(1)
    mesh.run(until=0.2)
    (link,) = (link for link, worker in mesh.core._mesh.fleet.workers.items() if worker.sequences)
    mesh.drain_worker(mesh.workers[link])
    while not mesh.core._mesh.fleet.workers[link].draining:
        mesh.run(until=mesh.now + 0.001)
    mesh.cancel(gateway, call)
    settle(mesh)
    judge(call)
    assert call.cancelled


@pytest.mark.parametrize("steps", [1, 32])
def test_it_is_told_once_and_gets_no_plans_for_what_has_left(steps: int) -> None:
    mesh, gateway = prepared(infos=[worker_info(), worker_info()], num_steps=steps, delay=0.0)
    mesh.submit(gateway, submission(1, max_tokens=90))
    mesh.run(until=0.1)
    mesh.attach_worker(1)
    mesh.drain_worker(mesh.workers[1])
    mesh.drain_worker(mesh.workers[1])
    mesh.run(until=0.1 + 2 * mesh.step_time)
    sent = len(mesh.sent)
    assert sum(log.event == "worker_draining" for log in mesh.logs) == 1
    settle(mesh)
    assert not any(action.link == 1 and isinstance(action.command, Plan) for action in mesh.sent[sent:])
