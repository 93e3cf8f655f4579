"""Workers that are there and do not move, in virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outcomes import judge, prepared, settle

from scheduler.actions import DropWorker, NewSequence
from scheduler.admission import AdmissionMode
from scheduler.events import EndReason, Event, SequenceReleased
from scheduler.overdue import LOOK_SECONDS
from scheduler.progress import HUNG_SECONDS, HUNG_TIMES, HUNG_TIMES_ALONE, Foreseen
from scheduler.simulator.cost import StepCost
from scheduler.simulator.gateway import Call, VirtualGateway
from scheduler.simulator.mesh import WORKER_GRACE_S, VirtualMesh, submission
from scheduler.simulator.small import worker_info
from scheduler.simulator.worker import SimulatedWorker

# Enough that none ends by itself in the first second.
LONG = 120


def two_workers(**options: object) -> tuple[VirtualMesh, VirtualGateway]:
    mesh, gateway = prepared(infos=[worker_info()] * 2, **options)
    mesh.attach_worker(1)
    return mesh, gateway


def streaming(mesh: VirtualMesh, gateway: VirtualGateway, count: int = 4) -> list[Call]:
    """Requests that have got some tokens, enough for their steps to be known."""
    calls = [mesh.submit(gateway, submission(key, (key, 2, 3), LONG)) for key in range(1, count + 1)]
    mesh.run(until=mesh.now + 0.5)
    assert all(8 < len(call.tokens) < LONG for call in calls)
    return calls


def lost_at(mesh: VirtualMesh) -> list[float]:
    """Times at which workers are given up, as they are."""
    times: list[float] = []
    lose = mesh.lose_worker

    def noted(worker: SimulatedWorker) -> None:
        times.append(mesh.now)
        lose(worker)

    mesh.lose_worker = noted  # type: ignore[method-assign]
    return times


def complete(*calls: Call) -> None:
    for call in calls:
        judge(call)
        assert call.ends[0].reason is EndReason.LENGTH


def test_what_a_worker_has_that_hangs_goes_on_elsewhere() -> None:
    mesh, gateway = two_workers()
    given_up = lost_at(mesh)
    calls = streaming(mesh, gateway)
    hung = mesh.workers[1]
    assert hung.sequences
    mesh.hang_worker(hung)
    began = mesh.now
    settle(mesh)
    complete(*calls)
    # Within the bound and one look.
    (found,) = given_up
    assert HUNG_SECONDS - 0.1 < found - began < HUNG_SECONDS + LOOK_SECONDS + 0.1
    assert [view.address for view in mesh.core.view().workers if view.hung] == ["host:1"]
    assert [log.fields["address"] for log in mesh.logs if log.event == "worker_late"] == ["host:1"]


def test_one_that_is_late_keeps_what_it_has_and_gets_nothing_new() -> None:
    mesh, gateway = two_workers(delay=0.0)
    calls = [mesh.submit(gateway, submission(key, (key, 2, 3), 60)) for key in (1, 2)]
    mesh.run(until=0.1)
    hung = mesh.workers[1]
    mesh.hang_worker(hung)
    mesh.run(until=2.5)
    first, _ = mesh.core.workers
    assert [view.late for view in mesh.core.view().workers] == [True, False]
    # The other one has more to do than it.
    later = [mesh.submit(gateway, submission(key, (key, 2, 3), 9)) for key in (3, 4, 5)]
    mesh.run(until=5.0)
    assert all(call.over for call in later)
    assert len(first.sequences) == 1
    assert mesh.wake_worker(hung) is hung
    settle(mesh)
    complete(*calls, *later)
    assert not any(view.late for view in mesh.core.view().workers)
    assert not any(log.event == "worker_lost" for log in mesh.logs)


def test_one_that_hangs_in_its_first_step_is_told_by_what_the_others_take() -> None:
    mesh, gateway = prepared(infos=[worker_info()] * 2)
    # A full step.
    calls = [mesh.submit(gateway, submission(9, tuple(range(1, 20)), 2))]
    calls += streaming(mesh, gateway, 2)
    new = mesh.attach_worker(1)
    mesh.run(until=mesh.now + 0.1)
    mesh.hang_worker(new)
    given_up = lost_at(mesh)
    began = mesh.now
    calls += [mesh.submit(gateway, submission(key, (key, 2, 3), 9)) for key in (5, 6)]
    mesh.run(until=began + 0.5)
    assert mesh.core.workers[1].sequences
    assert not new.steps_run
    settle(mesh)
    complete(*calls)
    (found,) = given_up
    bound_s = HUNG_TIMES[Foreseen.BY_OTHERS] * HUNG_SECONDS
    assert bound_s - 0.1 < found - began < bound_s + LOOK_SECONDS + 0.1


def test_a_lone_one_that_hangs_after_its_first_steps_is_told_by_these() -> None:
    mesh, gateway = prepared()
    call = mesh.submit(gateway, submission(1, (1, 2, 3), LONG))
    while len(call.tokens) < 3:
        mesh.run(until=mesh.now + 0.001)
    given_up = lost_at(mesh)
    mesh.hang_worker(mesh.workers[1])
    began = mesh.now
    mesh.run(until=began + (HUNG_TIMES_ALONE + 2) * HUNG_SECONDS)
    (found,) = given_up
    assert HUNG_TIMES_ALONE * HUNG_SECONDS - 0.1 < found - began < HUNG_TIMES_ALONE * HUNG_SECONDS + LOOK_SECONDS + 0.1


@pytest.mark.parametrize("num_workers", [1, 2])
def test_first_steps_of_half_a_minute_are_waited_for(num_workers: int) -> None:
    mesh, gateway = prepared(infos=[worker_info()] * num_workers, step_time=30.0)
    for index in range(1, num_workers):
        mesh.attach_worker(index)
    calls = [mesh.submit(gateway, submission(key, (key, 2, 3), 12)) for key in range(1, 4)]
    settle(mesh)
    complete(*calls)


@settings(max_examples=30)
@given(
    base=st.floats(0.001, 5.0),
    per_token=st.floats(0.0, 0.5),
    slower=st.floats(1.0, 4.0),
    seed=st.integers(0, 1000),
)
def test_slow_but_moving_is_never_hung(base: float, per_token: float, slower: float, seed: int) -> None:
    """Steps of up to 13 s, and four times as long from some moment on. A mesh with a worker that is dropped raises."""
    mesh, gateway = two_workers(costs=[StepCost(base, per_token)] * 2, seed=seed, admission_mode=AdmissionMode.OFF)
    for key in range(12):
        at = mesh.rng.random() * 40 * base
        prompt = [1 + key] * mesh.rng.randrange(1, 40)
        mesh.at(at, lambda key=key, prompt=prompt: mesh.submit(gateway, submission(key, prompt, 20)))
    slow = StepCost(base * slower, per_token * slower)
    for worker in mesh.workers.values():
        mesh.at(30 * base, lambda worker=worker: setattr(worker, "_cost", slow))
    settle(mesh)
    complete(*gateway.calls.values())


def test_a_step_larger_than_any_before_is_waited_for() -> None:
    """A forecast that knows only small steps says nothing of it."""
    mesh, gateway = prepared(infos=[worker_info(num_blocks=400, max_model_len=1000, max_num_batched_tokens=1000)] * 2)
    mesh.attach_worker(1)
    calls = streaming(mesh, gateway, 2)
    for worker in mesh.workers.values():
        worker._cost = StepCost(0.01, 0.1)
    calls.append(mesh.submit(gateway, submission(3, [7] * 800, 20)))
    settle(mesh)
    complete(*calls)


def test_alone_it_is_waited_for_longer_and_goes_on_if_it_wakes() -> None:
    mesh, gateway = prepared()
    (call,) = streaming(mesh, gateway, 1)
    (worker,) = mesh.workers.values()
    mesh.hang_worker(worker)
    mesh.run(until=mesh.now + (HUNG_TIMES_ALONE - 1) * HUNG_SECONDS)
    assert mesh.wake_worker(worker) is worker
    settle(mesh)
    complete(call)
    assert not any(log.event == "worker_lost" for log in mesh.logs)


def test_when_both_hang_a_request_ends_with_what_was_sent_and_another_at_its_deadline() -> None:
    mesh, gateway = two_workers()
    given_up = lost_at(mesh)
    calls = streaming(mesh, gateway, 2)
    hurried = mesh.submit(gateway, submission(3, (3, 2, 3), LONG, deadline_s=20.0))
    mesh.run(until=mesh.now + 0.1)
    began = mesh.now
    for worker in list(mesh.workers.values()):
        mesh.hang_worker(worker)
    settle(mesh)
    assert len(given_up) == 2
    assert HUNG_TIMES_ALONE * HUNG_SECONDS - 0.1 < given_up[0] - began < HUNG_TIMES_ALONE * HUNG_SECONDS + 2.1
    for call in calls:
        judge(call, failures={"WORKER_LOST"})
        failure = call.ends[0].failure
        assert failure is not None
        assert failure.reason == "WORKER_LOST"
        assert failure.metadata["tokens_emitted"] == str(len(call.tokens))
    assert mesh.now == pytest.approx(given_up[-1] + WORKER_GRACE_S)
    judge(hurried)
    assert hurried.ends[0].failure is not None
    assert hurried.ends[0].failure.reason == "DEADLINE_PASSED"


def test_when_both_hang_the_first_that_wakes_takes_the_others_work() -> None:
    mesh, gateway = two_workers()
    calls = streaming(mesh, gateway)
    first, second = mesh.workers.values()
    mesh.hang_worker(first)
    mesh.hang_worker(second)
    mesh.run(until=mesh.now + 3 * HUNG_SECONDS)
    assert len(mesh.workers) == 2
    mesh.wake_worker(second)
    settle(mesh)
    complete(*calls)
    assert list(mesh.workers) == [second.link]


def test_what_a_worker_says_that_was_given_up_is_nobodys_and_it_is_used_again() -> None:
    mesh, gateway = two_workers()
    calls = streaming(mesh, gateway)
    hung = mesh.workers[1]
    assert hung.busy
    mesh.hang_worker(hung)
    mesh.run(until=mesh.now + 2 * HUNG_SECONDS)
    assert hung.link not in mesh.workers
    back = mesh.wake_worker(hung)
    assert not any(view.hung for view in mesh.core.view().workers)
    assert back.pool.counts.used == 0
    settle(mesh)
    complete(*calls)
    again = [mesh.submit(gateway, submission(key, (key, 2, 3), 20)) for key in range(11, 17)]
    settle(mesh)
    complete(*again)
    assert {action.link for action in mesh.sent if isinstance(action.command, NewSequence)} >= {back.link}


@settings(max_examples=25)
@given(seed=st.integers(0, 2**16), naps=st.lists(st.floats(0.5, 30.0), min_size=1, max_size=6))
def test_however_often_workers_sleep_no_text_differs(seed: int, naps: list[float]) -> None:
    mesh, gateway = two_workers(seed=seed)
    for key in range(1, 13):
        mesh.at(0.2 * key, lambda key=key: mesh.submit(gateway, submission(key, (key, 2, 3), 60)))

    def sleep(nap: float) -> None:
        worker = mesh.rng.choice(list(mesh.workers.values()) or [None])
        if worker is not None and worker.link not in mesh._hung:
            mesh.hang_worker(worker)
            mesh.at(mesh.now + nap, lambda: mesh.wake_worker(worker))

    for nap in naps:
        mesh.at(mesh.rng.random() * 20, lambda nap=nap: sleep(nap))
    settle(mesh)
    # Who has lost several workers in a row ends; no test of chance may do that to it.
    for call in gateway.calls.values():
        judge(call, failures={"WORKER_LOST"}, refusals={"NO_WORKER"})


def test_a_scheduler_that_slept_does_not_take_the_workers_for_hung() -> None:
    """Nobody has read what they said meanwhile."""
    mesh, gateway = two_workers()
    calls = streaming(mesh, gateway)
    nap = 20 * HUNG_SECONDS
    agenda = mesh._agenda
    mesh._agenda = [(moment + nap, order, move) for moment, order, move in agenda]
    mesh.now += nap
    mesh.attach_gateway(9)
    assert len(mesh.workers) == 2
    settle(mesh)
    complete(*calls)
    assert not any(log.event == "worker_lost" for log in mesh.logs)


def test_a_worker_that_was_idle_for_long_does_not_hang() -> None:
    mesh, gateway = prepared()
    mesh.run(until=100 * HUNG_SECONDS)
    # The second one looks at who hangs before the first step is reported.
    for key in (1, 2):
        judged = mesh.submit(gateway, submission(key, (key, 2, 3)))
    settle(mesh)
    judge(judged)


def test_one_that_had_no_work_for_long_has_the_whole_time_for_a_release() -> None:
    """What rests there is no work; its cancel is."""
    mesh, gateway = two_workers()
    calls = [mesh.submit(gateway, submission(key, (key, 2, 3), LONG)) for key in (1, 2)]
    mesh.run(until=0.5)
    for call in calls:
        mesh.pause(gateway, call)
    mesh.run(until=100 * HUNG_SECONDS)
    assert all(worker.resting and not worker.busy for worker in mesh.core.workers)
    for call in calls:
        mesh.cancel(gateway, call)
    settle(mesh)
    assert all(call.cancelled for call in calls)
    assert len(mesh.workers) == 2


def test_a_worker_that_hangs_does_not_keep_what_was_cancelled_in_its_host_memory() -> None:
    info = worker_info(num_blocks=12, num_swap_blocks=64, swap_block_ns=1)
    mesh, gateway = prepared(infos=[info], costs=[StepCost(0.01, 1e-3)])
    calls = [mesh.submit(gateway, submission(key, (key, 2, 3), 36)) for key in (1, 2, 3)]
    (worker,) = mesh.core.workers
    while not worker.kept:
        mesh.run(until=mesh.now + 0.001)
        assert mesh.now < 10
    (key,) = worker.kept
    (hung,) = mesh.workers.values()
    report = mesh._report

    def without_answer(worker: SimulatedWorker, events: list[Event]) -> None:
        report(worker, [each for each in events if not isinstance(each, SequenceReleased) or each.sequence_id != key])

    mesh._report = without_answer  # type: ignore[method-assign]
    mesh.cancel(gateway, calls[key - 1])
    mesh.run(until=30)
    assert [call.over for call in calls].count(True) == 2
    mesh.hang_worker(hung)
    mesh.run(until=mesh.now + (HUNG_TIMES[Foreseen.BY_NOBODY] + 2) * HUNG_SECONDS)
    assert calls[key - 1].cancelled
    assert mesh.core.idle
    assert hung.link not in mesh.workers


def test_the_stream_of_one_that_hangs_is_ended() -> None:
    mesh, gateway = two_workers()
    streaming(mesh, gateway)
    mesh.hang_worker(mesh.workers[1])
    dropped: list[DropWorker] = []
    act = mesh._act

    def watch(action: object) -> None:
        if isinstance(action, DropWorker):
            dropped.append(action)
        act(action)  # type: ignore[arg-type]

    mesh._act = watch  # type: ignore[method-assign,assignment]
    settle(mesh)
    (action,) = dropped
    assert action.link == 1
    assert action.why.startswith("said nothing for 1")
