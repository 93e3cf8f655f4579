"""The real core against simulated gateways and workers in virtual time."""

from __future__ import annotations

import gc

import pytest
from outcomes import judge, plans, prepared, settle

from scheduler.actions import Refused, ToGateway
from scheduler.admission import QueueBounds
from scheduler.events import (
    CancelReason,
    DrainExpired,
    DrainStarted,
    EndReason,
    TenantsChanged,
)
from scheduler.sequence import Sequence
from scheduler.simulator.gateway import Call
from scheduler.simulator.mesh import VirtualMesh
from scheduler.simulator.small import submission, worker_info
from scheduler.tenant import NamedPlan


def test_one_request_gets_its_tokens_and_its_end() -> None:
    mesh = VirtualMesh()
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    call = mesh.submit(gateway, submission(1, max_tokens=20))
    settle(mesh)
    judge(call)
    assert len(call.tokens) == 20
    assert call.ends[0].reason is EndReason.LENGTH
    assert call.ends[0].account.blocks_used == 6


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
    assert call.ends[0].account.cached_tokens == 28
    assert other.ends[0].account.cached_tokens == 0


def test_a_queued_request_is_cancelled_at_once_and_never_sent() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=1)])
    mesh.submit(gateway, submission(1, max_tokens=20))
    call = mesh.submit(gateway, submission(2))
    mesh.cancel(gateway, call)
    (done,) = call.cancels_done
    assert done.account is not None
    assert done.account.blocks_used == 0
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
    account = call.cancels_done[0].account
    assert account is not None
    assert account.blocks_used > 0
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


def test_a_deadline_that_has_passed_is_refused_at_once() -> None:
    mesh, gateway = prepared()
    assert mesh.submit(gateway, submission(1, deadline_s=0.0)).refused == "DEADLINE_PASSED"
    settle(mesh)


def test_deadlines_behind_one_that_stays_keep_nothing_that_has_ended() -> None:
    mesh, gateway = prepared(step_time=0.001)
    stays = mesh.submit(gateway, submission(0, max_tokens=120, deadline_s=1.0))
    for key in range(1, 500):
        mesh.cancel(gateway, mesh.submit(gateway, submission(key, deadline_s=3600.0)))
    assert not stays.over
    assert len(mesh.core._mesh.deadlines.heap) <= 64 + 2 * len(mesh.core._mesh.sequences)
    settle(mesh)
    judge(stays)


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
    assert len(state.deadlines.heap) <= 64


def test_the_queue_is_bounded_but_a_burst_starts_first() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=2)], bounds=QueueBounds(1, 1000))
    calls = [mesh.submit(gateway, submission(key, max_tokens=20)) for key in range(1, 6)]
    assert [call.refused for call in calls] == [None, None, None, "QUEUE_FULL", "QUEUE_FULL"]
    settle(mesh)
    for call in calls[:3]:
        judge(call)


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
    # The other one had not begun.
    assert [call.ends[0].failure.retry_after_s is None for call in calls] == [True, False]


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


def test_a_tenant_whom_only_a_lost_gateway_named_is_counted_among_those_that_are_gone() -> None:
    mesh = VirtualMesh()
    one, two = mesh.attach_gateway(1), mesh.attach_gateway(2)
    mesh.attach_worker()
    mesh.post(TenantsChanged(one.number, 1, (NamedPlan("known"),)))
    mesh.post(TenantsChanged(two.number, 2, (NamedPlan("known"), NamedPlan("guest"))))
    for key, tenant in enumerate(("known", "guest")):
        mesh.submit(two, submission(key, tenant=tenant))
    settle(mesh)

    def accepted() -> dict[str | None, int]:
        return {each.tenant: each.counts.accepted for each in mesh.core.traffic(mesh.now, 10).tenants}

    assert accepted() == {"known": 1, "guest": 1}
    mesh.lose_gateway(two)
    mesh.run(until=mesh.now + 0.1)
    assert accepted() == {"known": 1, None: 1}


def test_what_ended_does_not_wait_for_the_garbage_collector() -> None:
    """A scheduler collects seldom: it would stand still for it."""
    # Too small for all: some have ended, and a leader waits with its forks, when the worker is lost for good.
    mesh, gateway = prepared(infos=[worker_info(num_blocks=24)])
    calls = [mesh.submit(gateway, submission(key, (key,) * 20, 20, n=key % 3 + 1)) for key in range(1, 7)]
    mesh.submit(gateway, submission(7, n=3, deadline_s=0.001))
    mesh.at(0.05, lambda: mesh.cancel(gateway, calls[0]))
    mesh.at(0.299, lambda: calls.append(mesh.submit(gateway, submission(8, n=3))))
    mesh.at(0.3, lambda: mesh.lose_worker(next(iter(mesh.workers.values()))))
    gc.collect()
    gc.disable()
    try:
        assert _num_sequences() >= 15
        settle(mesh)
        reasons = {output.ends[0].reason for call in calls[1:] for output in call.outputs}
        assert reasons == {EndReason.LENGTH, EndReason.FAILED}
        left = _num_sequences()
        gc.collect()
        assert _num_sequences() == left
    finally:
        gc.enable()


def _num_sequences() -> int:
    return sum(type(each) is Sequence for each in gc.get_objects())
