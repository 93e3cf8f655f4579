"""The real core against simulated gateways and workers in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated_worker import GREEDY, VOCAB, worker_info
from virtual_mesh import Call, VirtualGateway, VirtualMesh, submission

from scheduler.actions import Action, DropWorker, Plan, Refused, Release, ReleaseCause, ToGateway
from scheduler.admission import QueueBounds
from scheduler.core import STALL_SECONDS, WORKER_GRACE_SECONDS
from scheduler.events import (
    BlockCounts,
    CancelReason,
    DrainExpired,
    DrainStarted,
    Ended,
    EndReason,
    PlanEnded,
    StepReported,
    WorkerAttached,
)
from tercet.errors import EngineFaultError


def settle(mesh: VirtualMesh) -> None:
    """Everything has ended and nothing is left anywhere."""
    mesh.run()
    assert mesh.core.idle
    for worker in mesh.workers.values():
        assert not worker.sequences
        assert worker.pool.counts.used == 0


def judge(call: Call) -> None:
    """Exactly one terminal, every cancel answered, and the text that the request would get alone."""
    assert call.over
    assert len(call.cancels_done) == call.cancels_sent
    tokens, reason = call.expected()
    assert call.tokens == tokens[: len(call.tokens)]
    if call.ends:
        (end,) = call.ends
        if end.reason in (EndReason.STOP, EndReason.LENGTH):
            assert call.tokens == tokens
            assert end.reason is reason
            assert end.failure is None
        else:
            assert end.failure is not None


def test_one_request_gets_its_tokens_and_its_end() -> None:
    mesh = VirtualMesh()
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    call = mesh.submit(gateway, submission(1, max_tokens=20))
    settle(mesh)
    judge(call)
    assert len(call.tokens) == 20
    assert call.ends[0].reason is EndReason.LENGTH
    assert call.ends[0].blocks_used == 6


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_lives(data: st.DataObject) -> None:
    """Arrivals, cancels, deadlines, lost workers and gateways, tiny pools: the books balance after every event."""
    draw = data.draw
    block_size = draw(st.sampled_from([1, 2, 4, 8]))
    info = worker_info(
        block_size=block_size,
        num_blocks=-(-draw(st.integers(24, 120)) // block_size),
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.integers(1, 24)),
        max_model_len=64,
    )
    infos = [info] * draw(st.integers(1, 2))
    mesh = VirtualMesh(
        infos,
        num_steps=draw(st.sampled_from([1, 2, 4, 8, 32])),
        max_prefill_tokens=draw(st.sampled_from([0, 1, 4])),
        seed=draw(st.integers(0, 2**16)),
        delay=draw(st.sampled_from([0.0, 0.002, 0.03])),
        wake=draw(st.sampled_from([0.0, 0.01])),
        batching=draw(st.booleans()),
        caching=draw(st.booleans()),
        eager_revoke=draw(st.booleans()),
        reserve_ahead=draw(st.booleans()),
    )
    gateways = [mesh.attach_gateway(number) for number in (1, 2)]
    for index in range(len(infos)):
        mesh.attach_worker(index)
    rng = mesh.rng
    shared = [rng.randrange(VOCAB) for _ in range(24)]
    calls: list[tuple[VirtualGateway, Call]] = []

    def arrive(key: int) -> None:
        gateway = rng.choice(gateways)
        if gateway.lost:
            return
        prompt = shared[: rng.randrange(24)] + [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 12))]
        wish = submission(
            key,
            prompt,
            rng.randrange(1, 24),
            stop_token_ids=(7,) if rng.random() < 0.5 else (),
            sampling=replace(GREEDY, seed=rng.randrange(3)),
            deadline_s=rng.random() * 0.5 if rng.random() < 0.2 else None,
            prefix_salt=rng.choice([b"", b"tenant"]),
        )
        call = mesh.submit(gateway, wish)
        calls.append((gateway, call))
        if rng.random() < 0.3:
            for _ in range(rng.choice([1, 1, 2])):
                mesh.at(mesh.now + rng.random() * 0.3, lambda: gateway.lost or mesh.cancel(gateway, call))

    def crash() -> None:
        if mesh.workers:
            victim = rng.choice(list(mesh.workers.values()))
            index = int(mesh.core._mesh.fleet.workers[victim.link].address.rpartition(":")[2]) - 1
            mesh.lose_worker(victim)
            if rng.random() < 0.8:
                mesh.at(mesh.now + rng.random() * rng.choice([0.1, 8.0]), lambda: mesh.attach_worker(index) and None)

    burst = draw(st.booleans())
    for key in range(draw(st.integers(1, 25))):
        mesh.at(rng.random() * (0.02 if burst else 1.0), lambda key=key: arrive(key))
    if draw(st.booleans()):
        for _ in range(draw(st.integers(1, 3))):
            mesh.at(rng.random(), crash)
    if draw(st.booleans()):
        mesh.at(rng.random(), lambda: mesh.lose_gateway(gateways[1]))
    settle(mesh)
    for gateway, call in calls:
        if not gateway.lost:
            judge(call)
    assert not any(requests for requests in mesh.core._mesh.gateways.values())
    assert mesh.core.view().requests_finished == sum(log.event == "request_finished" for log in mesh.logs)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_credits_hold_to_the_last_block(data: st.DataObject) -> None:
    """Slow messages, long plans, full pools: revoked plans run on, and nobody may run out of blocks."""
    draw = data.draw
    block_size = draw(st.sampled_from([1, 1, 2, 4]))
    info = worker_info(block_size=block_size, num_blocks=-(-draw(st.integers(40, 70)) // block_size))
    mesh, gateway = prepared(
        infos=[info],
        num_steps=draw(st.sampled_from([4, 8, 32])),
        seed=draw(st.integers(0, 2**16)),
        delay=draw(st.sampled_from([0.03, 0.1])),
        wake=draw(st.sampled_from([0.0, 0.05])),
        eager_revoke=draw(st.booleans()),
        reserve_ahead=draw(st.booleans()),
        caching=draw(st.booleans()),
    )
    rng = mesh.rng
    for key in range(draw(st.integers(2, 12))):
        length = rng.randrange(1, 20)
        wish = submission(key, [rng.randrange(3) for _ in range(length)], rng.randrange(1, 41 - length))
        mesh.at(rng.random() * 1.5, lambda wish=wish: mesh.submit(gateway, wish))
    settle(mesh)
    for call in gateway.calls.values():
        judge(call)
        assert call.ends[0].reason is EndReason.LENGTH


def prepared(**options: object) -> tuple[VirtualMesh, VirtualGateway]:
    """A mesh with one gateway and one worker."""
    mesh = VirtualMesh(**options)  # type: ignore[arg-type]
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    return mesh, gateway


def plans(mesh: VirtualMesh) -> list[Plan]:
    return [action.command for action in mesh.sent if isinstance(action.command, Plan)]


def releases(mesh: VirtualMesh, cause: ReleaseCause) -> list[Release]:
    found = [action.command for action in mesh.sent if isinstance(action.command, Release)]
    return [release for release in found if release.cause is cause]


@pytest.mark.parametrize("num_steps", [1, 8, 32])
def test_a_newcomer_waits_for_one_step_whatever_k_is(num_steps: int) -> None:
    mesh, gateway = prepared(num_steps=num_steps)
    mesh.submit(gateway, submission(1, max_tokens=100))
    late: list[Call] = []
    mesh.at(0.2055, lambda: late.append(mesh.submit(gateway, submission(2, (9, 9), 4))))
    settle(mesh)
    # The rest of the step that runs, its own, and messages of at most 1 ms each way.
    assert late[0].times[0] - 0.2055 <= 2 * mesh.step_time + 0.003


def test_tokens_leave_after_every_step_and_the_worker_never_waits() -> None:
    mesh, gateway = prepared(num_steps=8)
    call = mesh.submit(gateway, submission(1, max_tokens=100))
    settle(mesh)
    gaps = [after - before for before, after in zip(call.times, call.times[1:], strict=False)]
    assert max(gaps) <= mesh.step_time + mesh.delay
    assert call.times[-1] <= 100 * mesh.step_time + 4 * mesh.delay


def test_a_long_prompt_does_not_starve_streams() -> None:
    mesh, gateway = prepared(max_prefill_tokens=4)
    mesh.submit(gateway, submission(1, max_tokens=60))
    mesh.at(0.05, lambda: mesh.submit(gateway, submission(2, [3] * 50, 4)))
    settle(mesh)
    assert max(sum(count for _, count in plan.chunks) for plan in plans(mesh)) == 4
    assert [plan for plan in plans(mesh) if plan.chunks and plan.chunks[0][0] == 2 and plan.num_steps > 1] != []


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


def test_a_large_request_is_not_overtaken_for_ever() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=20)])
    for key in range(1, 40):
        mesh.at(key * 0.03, lambda key=key: mesh.submit(gateway, submission(key, (key,), 12)))
    large: list[Call] = []
    mesh.at(0.2, lambda: large.append(mesh.submit(gateway, submission(100, [5] * 60, 8))))
    settle(mesh)
    judge(large[0])
    later = [call for key, call in gateway.calls.items() if 10 < key < 40]
    assert all(large[0].times[0] < call.times[0] for call in later)


def test_a_request_that_never_fits_is_refused_while_others_go_on() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=8)])
    good = mesh.submit(gateway, submission(1, max_tokens=20))
    assert mesh.submit(gateway, submission(2, [1] * 30, 8)).refused == "KV_NEVER_FITS"
    assert mesh.submit(gateway, submission(3, [1] * 130, 8)).refused == "PROMPT_TOO_LONG"
    settle(mesh)
    judge(good)


def test_max_tokens_below_k_and_a_stop_in_mid_plan() -> None:
    mesh, gateway = prepared(num_steps=32)
    short = mesh.submit(gateway, submission(1, max_tokens=1))
    expected = Call(submission(2, (4, 5), 40)).expected()[0]
    stopped = mesh.submit(gateway, submission(2, (4, 5), 40, stop_token_ids=(expected[10],)))
    settle(mesh)
    for call in (short, stopped):
        judge(call)
    assert len(short.tokens) == 1
    assert stopped.ends[0].reason is EndReason.STOP
    assert stopped.ends[0].stop_token_id == expected[10]


def test_prefix_hits_are_reported_and_change_no_text() -> None:
    mesh, gateway = prepared()
    prompt = list(range(30))
    mesh.submit(gateway, submission(1, prompt, 4))
    mesh.run()
    call = mesh.submit(gateway, submission(2, prompt, 30))
    other = mesh.submit(gateway, submission(3, prompt, 4, prefix_salt=b"other"))
    settle(mesh)
    judge(call)
    assert call.ends[0].cached_tokens == 28
    assert other.ends[0].cached_tokens == 0


def test_a_queued_request_is_cancelled_at_once_and_never_sent() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=1)])
    mesh.submit(gateway, submission(1, max_tokens=20))
    call = mesh.submit(gateway, submission(2))
    mesh.cancel(gateway, call)
    (done,) = call.cancels_done
    assert done.found
    assert done.blocks_used == 0
    settle(mesh)
    assert not call.tokens


def test_every_cancel_is_answered_and_only_the_first_finds_it() -> None:
    mesh, gateway = prepared()
    call = mesh.submit(gateway, submission(1, max_tokens=90))
    mesh.run(until=0.1)
    mesh.cancel(gateway, call)
    mesh.cancel(gateway, call)
    settle(mesh)
    mesh.cancel(gateway, call)
    assert [done.found for done in call.cancels_done] == [True, False, False]
    assert call.cancels_done[0].blocks_used > 0
    assert not call.ends
    events = [log.event for log in mesh.logs]
    assert events.index("cancel_received") < events.index("release_sent") < events.index("released")


def test_a_cancel_frees_within_two_steps() -> None:
    mesh, gateway = prepared(num_steps=32)
    call = mesh.submit(gateway, submission(1, max_tokens=100))
    mesh.run(until=0.2)
    mesh.cancel(gateway, call)
    (worker,) = mesh.workers.values()
    mesh.run(until=0.2 + 2 * mesh.step_time)
    assert worker.pool.counts.used == 0
    settle(mesh)


def test_a_deadline_in_the_queue_ends_before_any_prefill() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=1)])
    mesh.submit(gateway, submission(1, max_tokens=60))
    late = mesh.submit(gateway, submission(2, deadline_s=0.1))
    settle(mesh)
    (end,) = late.ends
    assert end.failure is not None
    assert end.failure.reason == "DEADLINE_PASSED"
    assert not late.tokens
    assert len([action for action in mesh.sent if getattr(action.command, "sequence_id", 0) == 2]) == 0


def test_a_cancel_after_the_deadline_is_the_only_answer() -> None:
    mesh, gateway = prepared(delay=0.05)
    call = mesh.submit(gateway, submission(1, max_tokens=100, deadline_s=0.3))
    mesh.run(until=0.301)
    mesh.cancel(gateway, call)
    settle(mesh)
    assert not call.ends
    assert [done.found for done in call.cancels_done] == [True]


def test_a_thousand_cancelled_requests_leave_nothing() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=64)], step_time=0.001)
    for key in range(1000):

        def arrive(key: int = key) -> None:
            call = mesh.submit(gateway, submission(key, [key % 50] * 5, 50, deadline_s=3600.0))
            mesh.at(mesh.now + mesh.rng.random() * 0.02, lambda: mesh.cancel(gateway, call))

        mesh.at(key * 0.001, arrive)
    mesh.run(until=5.0)
    assert mesh.core.idle
    (worker,) = mesh.workers.values()
    assert worker.pool.counts.used == 0
    assert all(call.over for call in gateway.calls.values())
    state = mesh.core._mesh
    assert not state.gateways[1]
    # Deadlines an hour ahead do not keep what has ended.
    assert len(state._deadlines) <= 64


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
    assert mesh.now == pytest.approx(lost_at + WORKER_GRACE_SECONDS)
    failure = begun.ends[0].failure
    assert failure is not None
    assert failure.reason == "WORKER_LOST"
    assert failure.metadata["tokens_emitted"] == str(len(begun.tokens)) != "0"
    assert failure.retry_after_s is None
    assert queued.ends[0].failure is not None
    assert queued.ends[0].failure.reason == "NO_WORKER"


def test_a_smaller_worker_that_comes_back_does_not_block_the_queue() -> None:
    mesh, gateway = prepared(infos=[worker_info(), worker_info(num_blocks=6)])
    large = mesh.submit(gateway, submission(1, [1] * 40, 40))
    small = mesh.submit(gateway, submission(2, (2,), 20))
    mesh.run(until=0.1)
    mesh.lose_worker(next(iter(mesh.workers.values())))
    mesh.attach_worker(1)
    settle(mesh)
    judge(small)
    assert small.ends[0].reason is EndReason.LENGTH
    assert large.ends[0].failure is not None
    assert large.ends[0].failure.reason == "WORKER_LOST"


def test_the_queue_is_bounded_but_a_burst_starts_first() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=2)], bounds=QueueBounds(1, 1000))
    calls = [mesh.submit(gateway, submission(key, max_tokens=20)) for key in range(1, 6)]
    assert [call.refused for call in calls] == [None, None, None, "QUEUE_FULL", "QUEUE_FULL"]
    settle(mesh)
    for call in calls[:3]:
        judge(call)


def test_a_preempted_sequence_is_not_held_up_by_the_queue_bound() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=12)], bounds=QueueBounds(1, 1000))
    calls = [mesh.submit(gateway, submission(key, (key, 2, 3), 36)) for key in range(1, 4)]
    settle(mesh)
    assert mesh.core.view().preemptions > 0
    for call in calls:
        judge(call)
        assert call.ends[0].reason is EndReason.LENGTH


def test_a_key_in_use_is_refused() -> None:
    mesh, gateway = prepared()
    mesh.submit(gateway, submission(1, max_tokens=50))
    original = gateway.calls.pop(1)
    gateway.calls[1] = Call(submission(1))
    actions: list[object] = []
    act = mesh._act
    mesh._act = lambda action: actions.append(action)  # type: ignore[method-assign,assignment]
    mesh.submit(gateway, submission(1))
    mesh._act = act  # type: ignore[method-assign]
    refused = [a.message for a in actions if isinstance(a, ToGateway) and isinstance(a.message, Refused)]
    assert refused[0].failure.reason == "DUPLICATE_REQUEST"
    gateway.calls[1] = original
    settle(mesh)
    judge(original)


def test_draining_refuses_new_and_finishes_running_ones() -> None:
    mesh, gateway = prepared()
    running = mesh.submit(gateway, submission(1, max_tokens=20))
    mesh.post(DrainStarted())
    assert mesh.submit(gateway, submission(2)).refused == "DRAINING"
    settle(mesh)
    judge(running)
    assert running.ends[0].reason is EndReason.LENGTH


def test_when_the_drain_expires_everything_gets_a_typed_end() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=1)])
    calls = [mesh.submit(gateway, submission(key, max_tokens=90)) for key in (1, 2)]
    mesh.run(until=0.1)
    mesh.post(DrainExpired())
    settle(mesh)
    for call in calls:
        assert call.ends[0].failure is not None
        assert call.ends[0].failure.reason == "DRAINING"


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


def test_a_worker_of_a_new_revision_replaces_the_pool() -> None:
    mesh, gateway = prepared(infos=[worker_info()])
    mesh.lose_worker(next(iter(mesh.workers.values())))
    mesh.post(WorkerAttached(9, "host:1", worker_info(model_revision="r2")))
    assert gateway.pools is not None
    assert [(pool.model_revision, pool.workers_live) for pool in gateway.pools.pools] == [("r2", 1)]
    assert mesh.submit(gateway, submission(1)).refused == "REVISION_MISMATCH"


def test_losing_a_gateway_cancels_only_its_requests() -> None:
    mesh = VirtualMesh()
    one, two = mesh.attach_gateway(1), mesh.attach_gateway(2)
    mesh.attach_worker()
    mesh.submit(one, submission(1, max_tokens=60))
    kept = mesh.submit(two, submission(1, max_tokens=30))
    mesh.run(until=0.1)
    mesh.lose_gateway(one)
    settle(mesh)
    judge(kept)
    ended = [log.fields for log in mesh.logs if log.event == "request_finished"]
    assert sorted(str(fields["reason"]) for fields in ended) == ["", CancelReason.LINK_LOST.name]


def test_a_worker_that_hangs_is_dropped_and_its_requests_go_on() -> None:
    mesh, gateway = prepared()
    call = mesh.submit(gateway, submission(1, max_tokens=30))
    mesh.run(until=0.1)
    (hung,) = mesh.workers.values()
    dropped: list[float] = []
    act = mesh._act

    def watch(action: Action) -> None:
        if isinstance(action, DropWorker):
            dropped.append(mesh.now)
            mesh.at(mesh.now, lambda: mesh.lose_worker(hung))
            mesh.at(mesh.now + 1, mesh.attach_worker)
        else:
            act(action)

    mesh._act = watch  # type: ignore[method-assign]
    mesh._finish = lambda worker: None if worker is hung else VirtualMesh._finish(mesh, worker)  # type: ignore[method-assign]
    settle(mesh)
    judge(call)
    assert call.ends[0].reason is EndReason.LENGTH
    assert len(dropped) == 1
    assert STALL_SECONDS < dropped[0] < STALL_SECONDS + 1
