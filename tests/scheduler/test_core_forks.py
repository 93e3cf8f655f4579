"""Several outputs of one request, in virtual time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from outcomes import judge, prepared, releases, settle

from scheduler.actions import DropWorker, NewSequence, ReleaseCause, ToWorker
from scheduler.admission import MAX_SEQUENCES_PER_REQUEST, QueueBounds
from scheduler.events import CancelReason, Ended, EndReason, Event, SequenceStopped, StepReported
from scheduler.sequence import MAX_LOSSES
from scheduler.simulator.cost import StepCost
from scheduler.simulator.gateway import Call, VirtualGateway
from scheduler.simulator.mesh import VirtualMesh
from scheduler.simulator.small import GREEDY, submission, worker_info
from tercet.errors import EngineFaultError


def started(mesh: VirtualMesh) -> list[NewSequence]:
    return [action.command for action in mesh.sent if isinstance(action.command, NewSequence)]


def finished(mesh: VirtualMesh) -> dict[str, object]:
    (fields,) = (log.fields for log in mesh.logs if log.event == "request_finished")
    return dict(fields)


@pytest.mark.parametrize("length", [1, 3, 4, 50])
def test_each_output_is_the_text_of_its_seed(length: int) -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=64)])
    asked = submission(1, [5] * length, 20, n=4, sampling=replace(GREEDY, seed=2**64 - 2))
    call = mesh.submit(gateway, asked)
    settle(mesh)
    judge(call)
    assert len({tuple(output.tokens) for output in call.outputs}) == 4
    (new,) = started(mesh)
    # Seeds go round.
    assert [seed for _, seed in new.forks] == [2**64 - 1, 0, 1]
    assert new.sampling.seed == 2**64 - 2
    # One prefill: all begin in the same step.
    assert len({output.times[0] for output in call.outputs}) == 1


def test_forks_share_the_blocks_of_the_prompt() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=32)], caching=False)
    call = mesh.submit(gateway, submission(1, [5] * 50, 8, n=4))
    (worker,) = mesh.workers.values()
    while not call.outputs[3].tokens[2:]:
        mesh.run(until=mesh.now + 0.002)
    # 12 full blocks of the prompt; the partial one is copied by all but one, and room to grow.
    assert worker.pool.counts.used <= 12 + 4 * 2
    settle(mesh)
    judge(call)
    account = [output.ends[0].account for output in call.outputs]
    assert sum(each.blocks_freed for each in account) < sum(each.blocks_used for each in account)


def test_a_pool_for_little_more_than_the_prompt_preempts_forks_one_by_one() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=16)])
    call = mesh.submit(gateway, submission(1, [5] * 42, 20, n=4))
    settle(mesh)
    judge(call)
    assert all(output.ends[0].reason is EndReason.LENGTH for output in call.outputs)
    assert mesh.core.view().preemptions >= 3
    # The leader is the most urgent.
    victims = [key for release in releases(mesh, ReleaseCause.PREEMPT) for key in release.sequence_ids]
    assert call.sequence_ids[0] not in victims
    assert finished(mesh)["preemptions"] == len(victims)


def test_outputs_that_gave_way_are_one_request_to_the_bounds_of_the_queue() -> None:
    info = worker_info(num_blocks=16, max_num_seqs=4)
    mesh, gateway = prepared(infos=[info], bounds=QueueBounds(2, 10_000))
    mesh.submit(gateway, submission(1, [5] * 42, 20, n=4))
    (pool,) = mesh.core._mesh.fleet.pools.values()
    while len(pool.waiting) < 2:
        mesh.run(until=mesh.now + 0.001)
        assert mesh.now < 10
    assert pool.waiting.num_requests == mesh.core.view().requests_waiting == 1
    later = [mesh.submit(gateway, submission(key, [1] * 30)) for key in (2, 3)]
    assert [call.refused for call in later] == [None, "QUEUE_FULL"]
    settle(mesh)


def test_several_groups_in_a_small_pool() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=14, max_num_seqs=6)], num_steps=8)
    calls = [mesh.submit(gateway, submission(key, [key] * (5 + key), 25, n=1 + key % 4)) for key in range(1, 9)]
    settle(mesh)
    for call in calls:
        judge(call)
        assert all(output.ends[0].reason is EndReason.LENGTH for output in call.outputs)


def test_a_cancel_ends_all_and_is_answered_once() -> None:
    mesh, gateway = prepared()
    call = mesh.submit(gateway, submission(1, max_tokens=90, n=3))
    mesh.run(until=0.1)
    mesh.cancel(gateway, call)
    mesh.cancel(gateway, call)
    settle(mesh)
    assert [done.found for done in call.cancels_done] == [True, False]
    account = call.cancels_done[0].account
    assert account is not None
    assert account.blocks_used >= 3 * 2
    (release,) = releases(mesh, ReleaseCause.CANCEL)
    assert release.sequence_ids == call.sequence_ids
    assert not any(output.ends for output in call.outputs)


def test_a_cancel_before_the_prefill_is_complete_takes_the_whole_group() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_batched_tokens=4)])
    call = mesh.submit(gateway, submission(1, [3] * 60, 9, n=3))
    mesh.run(until=0.05)
    assert mesh.core.view().requests_running == 1
    mesh.cancel(gateway, call)
    settle(mesh)
    (release,) = releases(mesh, ReleaseCause.CANCEL)
    assert release.sequence_ids == call.sequence_ids
    assert call.cancelled


def test_a_cancel_that_crosses_the_fork_wastes_a_token_of_each() -> None:
    mesh, gateway = prepared(delay=0.0)
    call = mesh.submit(gateway, submission(1, max_tokens=50, n=3))
    # The step that forks them is running.
    mesh.run(until=0.005)
    mesh.cancel(gateway, call)
    settle(mesh)
    assert finished(mesh)["wasted_tokens"] == 3
    assert finished(mesh)["tokens"] == 0


def test_a_waiting_group_counts_its_prompt_once_and_is_cancelled_at_once() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=3)])
    mesh.submit(gateway, submission(1, max_tokens=90))
    call = mesh.submit(gateway, submission(2, [3] * 40, 8, n=3))
    (pool,) = mesh.core._mesh.fleet.pools.values()
    assert (len(pool.waiting), pool.waiting.num_sequences, pool.waiting.num_tokens) == (1, 3, 40)
    (leader,) = pool.waiting
    # One list, however many outputs wait.
    assert all(fork.token_ids is leader.token_ids for fork in leader.forks)
    assert mesh.core.view().requests_waiting == 1
    mesh.cancel(gateway, call)
    assert call.cancelled
    assert (len(pool.waiting), pool.waiting.num_sequences) == (0, 0)
    settle(mesh)


def test_outputs_that_wait_count_each() -> None:
    most = 2 * MAX_SEQUENCES_PER_REQUEST
    mesh, gateway = prepared(infos=[worker_info(num_blocks=64, max_num_seqs=most)], bounds=QueueBounds(2, 10_000))
    calls = [mesh.submit(gateway, submission(key, [key] * 30, 8, n=n)) for key, n in ((1, most), (2, most), (3, 1))]
    assert [call.refused for call in calls] == [None, None, "QUEUE_FULL"]
    settle(mesh)


def test_a_token_for_a_group_whose_prefill_is_not_complete_breaks_the_contract() -> None:
    for sequence_id in (1, 2):
        mesh, gateway = prepared(infos=[worker_info(max_num_batched_tokens=4)], delay=0.0)
        mesh.submit(gateway, submission(1, [3] * 60, n=2))
        (worker,) = mesh.workers.values()
        mesh.run(until=0.005)
        (report, *_) = worker.finish()
        assert isinstance(report, StepReported)
        early = replace(report, sequence_ids=(sequence_id,), token_ids=(7,))
        assert any(isinstance(action, DropWorker) for action in mesh.core.handle(early, mesh.now))
        # None of the others has it.
        assert [len(sequence.token_ids) for sequence in mesh.core._mesh.sequences.values()] == [60, 60]


def lending_mesh() -> tuple[VirtualMesh, VirtualGateway, Call]:
    """A group that can have every slot of its worker, in a prefill of 25 steps; it ends with the step at 0.25 s."""
    mesh, gateway = prepared(
        infos=[worker_info(num_blocks=200, max_num_seqs=4, max_num_batched_tokens=8, max_model_len=512)],
        costs=[StepCost(0.01)],
        caching=False,
    )
    group = mesh.submit(gateway, submission(1, [3] * 200, 8, n=4, traffic_class="batch"))
    mesh.run(until=0.05)
    return mesh, gateway, group


def test_a_group_in_prefill_keeps_no_slot_from_who_is_more_urgent() -> None:
    mesh, gateway, group = lending_mesh()
    later = mesh.submit(gateway, submission(2, [5] * 4, 3, traffic_class="batch"))
    urgent = [mesh.submit(gateway, submission(key, [key] * 4, 3)) for key in (3, 4, 5)]
    settle(mesh)
    for call in (group, later, *urgent):
        judge(call)
    assert all(call.outputs[0].times[0] < 0.15 for call in urgent)
    # Who is less urgent does not get in the group's way.
    assert later.outputs[0].times[0] > group.outputs[0].times[0]
    # All of it began in one step.
    assert len({output.times[0] for output in group.outputs}) == 1


def test_a_group_begins_when_the_slots_that_it_lent_are_free() -> None:
    mesh, gateway, group = lending_mesh()
    urgent = [mesh.submit(gateway, submission(key, [key] * 4, 60)) for key in (3, 4)]
    mesh.run(until=0.5)
    # The worker has all of the prompt but its end.
    (worker,) = mesh.core.workers
    leader = worker.sequences[group.sequence_ids[0]]
    assert leader.computed == 199
    assert not group.tokens
    # More may come, and in the end it is the group's turn.
    urgent.append(mesh.submit(gateway, submission(5, [5] * 4, 9)))
    settle(mesh)
    for call in (group, *urgent):
        judge(call)
    assert all(output.ends[0].reason is EndReason.LENGTH for output in group.outputs)
    assert group.outputs[0].times[0] > max(call.outputs[0].times[-1] for call in urgent[:2])


def test_slots_of_a_group_that_is_cancelled_or_lost_are_free() -> None:
    for leave in (VirtualMesh.cancel, lambda mesh, *_: mesh.lose_worker(next(iter(mesh.workers.values())))):
        mesh, gateway, group = lending_mesh()
        urgent = [mesh.submit(gateway, submission(key, [key] * 4, 60)) for key in (3, 4, 5)]
        mesh.run(until=0.5)
        leave(mesh, gateway, group)  # type: ignore[operator]
        mesh.attach_worker()
        settle(mesh)
        for call in (group, *urgent):
            judge(call)


def test_a_deadline_ends_all_outputs() -> None:
    mesh, gateway = prepared()
    call = mesh.submit(gateway, submission(1, max_tokens=100, n=3, deadline_s=0.2))
    settle(mesh)
    failures = [output.ends[0].failure for output in call.outputs]
    assert {failure.reason for failure in failures if failure is not None} == {"DEADLINE_PASSED"}
    assert all(output.tokens for output in call.outputs)


def test_the_stop_of_one_output_ends_that_one_only() -> None:
    mesh, gateway = prepared()
    call = mesh.submit(gateway, submission(1, max_tokens=40, n=3))
    mesh.run(until=0.1)
    mesh.stop(gateway, call, 1)
    mesh.stop(gateway, call, 1)
    settle(mesh)
    judge(call)
    (end,) = call.outputs[1].ends
    assert (end.reason, end.failure) == (EndReason.CANCELLED, None)
    assert end.account.blocks_used > 0
    assert len(call.outputs[1].tokens) < 40
    assert [len(call.outputs[index].tokens) for index in (0, 2)] == [40, 40]


def test_the_stop_of_the_last_output_ends_the_request() -> None:
    mesh, gateway = prepared()
    call = mesh.submit(gateway, submission(1, max_tokens=90))
    mesh.run(until=0.1)
    mesh.stop(gateway, call)
    mesh.run(until=0.15)
    assert mesh.core.idle
    assert finished(mesh)["reason"] == "STOP_STRING"
    mesh.stop(gateway, call)
    settle(mesh)
    judge(call)


@pytest.mark.parametrize("index", [0, 1])
def test_a_stop_before_anything_was_generated_waits_for_the_fork(index: int) -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_batched_tokens=8)])
    call = mesh.submit(gateway, submission(1, [3] * 60, 9, n=3))
    mesh.stop(gateway, call, index)
    settle(mesh)
    judge(call)
    assert call.outputs[index].ends[0].reason is EndReason.CANCELLED
    assert [len(output.tokens) for output in call.outputs].count(9) == 2


def test_nobody_stops_the_sequence_of_another_gateway() -> None:
    mesh, gateway = prepared()
    mesh.attach_gateway(2)
    call = mesh.submit(gateway, submission(1, max_tokens=10))
    mesh.post(SequenceStopped(2, call.sequence_ids[0], CancelReason.STOP_STRING))
    mesh.post(SequenceStopped(1, 999, CancelReason.STOP_STRING))
    settle(mesh)
    assert call.ends[0].reason is EndReason.LENGTH


@pytest.mark.parametrize("until", [0.05, 0.2])
def test_a_lost_worker_is_a_pause_for_groups_before_and_after_the_fork(until: float) -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=64, max_num_batched_tokens=8)])
    call = mesh.submit(gateway, submission(1, [3] * 60, 30, n=3))
    mesh.run(until=until)
    assert bool(call.tokens) == (until == 0.2)
    mesh.lose_worker(next(iter(mesh.workers.values())))
    mesh.attach_worker()
    settle(mesh)
    judge(call)
    assert all(output.ends[0].reason is EndReason.LENGTH for output in call.outputs)
    # As a group if they had not begun, otherwise each by itself.
    assert len(started(mesh)) == (2 if until == 0.05 else 4)


def test_a_group_that_brings_down_every_worker_ends_as_a_whole() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_batched_tokens=4)])
    call = mesh.submit(gateway, submission(1, [3] * 60, 9, n=3))
    for _ in range(MAX_LOSSES):
        mesh.run(until=mesh.now + 0.05)
        mesh.lose_worker(next(iter(mesh.workers.values())))
        mesh.attach_worker()
    settle(mesh)
    failures = [output.ends[0].failure for output in call.outputs]
    assert [failure.reason for failure in failures if failure is not None] == ["WORKER_LOST"] * 3


def test_without_a_worker_the_grace_ends_every_output() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_batched_tokens=4)])
    call = mesh.submit(gateway, submission(1, [3] * 60, 9, n=3))
    mesh.run(until=0.05)
    mesh.lose_worker(next(iter(mesh.workers.values())))
    settle(mesh)
    assert Counter(output.ends[0].reason for output in call.outputs) == {EndReason.FAILED: 3}


def fail_leader(mesh: VirtualMesh, *, forks_too: bool) -> None:
    """The worker fails the first sequence in its third step, before its forks have begun."""
    (worker,) = mesh.workers.values()
    finish = worker.finish

    def failing() -> list[Event]:
        events = finish()
        if worker.steps_run != 3:
            return events
        ids = [1, *worker.leaders] if forks_too else [1]
        freed = worker._forget(1)
        for key in ids[1:]:
            del worker.leaders[key]
        fault = tuple(Ended(key, EndReason.FAILED, 0, EngineFaultError("device fault"), 0, freed) for key in ids)
        counts = worker.pool.counts
        return [
            replace(event, ended=fault, blocks=counts)
            if isinstance(event, StepReported)
            else replace(event, blocks=counts)  # type: ignore[call-arg]
            for event in events
        ]

    worker.finish = failing  # type: ignore[method-assign]


def test_a_leader_that_fails_fails_its_forks() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_batched_tokens=4)], caching=False)
    call = mesh.submit(gateway, submission(1, [3] * 60, 9, n=3))
    other = mesh.submit(gateway, submission(2, max_tokens=9))
    fail_leader(mesh, forks_too=True)
    settle(mesh)
    failures = [output.ends[0].failure for output in call.outputs]
    assert [failure.reason for failure in failures if failure is not None] == ["ENGINE_FAULT"] * 3
    judge(other)
    assert other.ends[0].reason is EndReason.LENGTH


def test_a_worker_that_forgets_the_forks_of_a_leader_is_dropped_and_they_go_on_elsewhere() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_batched_tokens=4)], caching=False)
    call = mesh.submit(gateway, submission(1, [3] * 60, 9, n=3))
    fail_leader(mesh, forks_too=False)
    (broken,) = mesh.workers.values()
    act = mesh._act

    def replace_worker(action: object) -> None:
        if isinstance(action, DropWorker):
            mesh.lose_worker(broken)
            mesh.attach_worker()
        else:
            act(action)  # type: ignore[arg-type]

    mesh._act = replace_worker  # type: ignore[method-assign,assignment]
    settle(mesh)
    judge(call, failures={"ENGINE_FAULT"})
    reasons = [output.ends[0].reason for output in call.outputs]
    assert reasons == [EndReason.FAILED, EndReason.LENGTH, EndReason.LENGTH]


def test_a_step_that_completes_a_prefill_without_a_token_for_each_fork_breaks_the_contract() -> None:
    mesh, gateway = prepared(delay=0.0)
    mesh.submit(gateway, submission(1, n=2))
    (worker,) = mesh.workers.values()
    mesh.run(until=0.005)
    (report, *_) = worker.finish()
    assert isinstance(report, StepReported)
    assert report.sequence_ids == (1, 2)
    cut = replace(report, sequence_ids=(1,), token_ids=report.token_ids[:1])
    actions = mesh.core.handle(cut, mesh.now)
    assert any(isinstance(action, DropWorker) for action in actions)
    assert not any(isinstance(action, ToWorker) for action in actions)


def test_more_outputs_than_a_worker_runs_are_refused_and_others_go_on() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=16)])
    assert mesh.submit(gateway, submission(1, n=9)).refused == "INVALID_FIELD"
    assert mesh.submit(gateway, submission(2, [1] * 48, 8, n=5)).refused == "KV_NEVER_FITS"
    call: Call = mesh.submit(gateway, submission(3, [1] * 48, 8, n=4))
    settle(mesh)
    judge(call)


@pytest.mark.parametrize(
    ("ends", "worst", "reason"),
    [
        (("LENGTH", "CANCELLED", "LENGTH"), "CANCELLED", "STOP_STRING"),
        (("LENGTH", "CANCELLED", "FAILED"), "FAILED", "ENGINE_FAULT"),
        (("LENGTH", "LENGTH"), "LENGTH", ""),
    ],
)
def test_the_log_tells_the_worst_end_of_all_outputs(ends: tuple[str, ...], worst: str, reason: str) -> None:
    mesh, gateway = prepared()
    call = mesh.submit(gateway, submission(1, max_tokens=30, n=len(ends)))
    mesh.run(until=0.1)
    (worker,) = mesh.workers.values()
    for index, end in enumerate(ends):
        if end == "CANCELLED":
            mesh.stop(gateway, call, index)
        elif end == "FAILED":
            worker.failing.add(call.sequence_ids[index])
    settle(mesh)
    assert tuple(output.ends[0].reason.name for output in call.outputs) == ends
    fields = finished(mesh)
    assert (fields["outcome"], fields["reason"]) == (worst, reason)
