"""Where a cancel found its request, how long it took, and what was spent on it meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from outcomes import judge, prepared, settle

from scheduler.actions import Action, CancelDone, Release, ReleaseCause
from scheduler.cancel_trail import CancelMark, CancelTrail, trail_of
from scheduler.events import CancelReason, EndReason, Event, StepReported
from scheduler.simulator.gateway import Call, VirtualGateway
from scheduler.simulator.mesh import VirtualMesh
from scheduler.simulator.small import submission, worker_info

STEP_S = 0.01


def trail(call: Call) -> CancelTrail:
    """Of the first answer to its cancels."""
    done = call.cancels_done[0]
    assert done.trail is not None
    return done.trail


def test_a_mark_becomes_a_trail() -> None:
    mark = CancelMark(CancelReason.CLIENT, 2.0, ("DECODE",), 100.4)
    assert trail_of(mark, 350.9, 2.5) == CancelTrail(CancelReason.CLIENT, ("DECODE",), None, 0.5, 250)
    mark.released_at = 2.25
    # A first token that was kept back takes back what it had cost.
    assert trail_of(mark, 90.0, 3.0) == CancelTrail(CancelReason.CLIENT, ("DECODE",), 0.25, 1.0, 0)


def test_one_that_waits_is_gone_at_once() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=2)])
    mesh.submit(gateway, submission(1, max_tokens=20, n=2))
    call = mesh.submit(gateway, submission(2, n=2))
    mesh.cancel(gateway, call)
    assert trail(call) == CancelTrail(CancelReason.CLIENT, ("QUEUED", "QUEUED"), None, 0.0, 0)
    settle(mesh)


@pytest.mark.parametrize(("prompt", "until", "state"), [((1,) * 90, 0.025, "PREFILL"), ((1, 2, 3), 0.105, "DECODE")])
def test_one_that_runs_is_free_within_two_steps(prompt: tuple[int, ...], until: float, state: str) -> None:
    mesh, gateway = prepared(num_steps=32, step_time=STEP_S)
    call = mesh.submit(gateway, submission(1, prompt, 30))
    mesh.run(until=until)
    mesh.cancel(gateway, call, CancelReason.SLOW_CONSUMER)
    # Only the first of several counts.
    mesh.cancel(gateway, call, CancelReason.CLIENT)
    settle(mesh)
    found = trail(call)
    assert (found.reason, found.states, found.release_s) == (CancelReason.SLOW_CONSUMER, (state,), 0.0)
    assert 0 < found.freed_s <= 2 * STEP_S
    # The step that was under way, and perhaps the next one.
    assert 0 < found.late_gpu_us <= 2 * STEP_S * 1e6
    assert call.cancels_done[1] == CancelDone(1)


def preempted(mesh: VirtualMesh, calls: list[Call]) -> Call:
    """Runs until one of them has been told to give way."""
    sequences = mesh.core._mesh.sequences
    while True:
        mesh.run(until=mesh.now + 0.0005)
        assert mesh.now < 10
        for call in calls:
            for sequence_id in call.sequence_ids:
                if sequence_id in sequences and sequences[sequence_id].state.value == "PREEMPTED":
                    return call


def test_one_that_gives_way_has_been_told_to_go() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=12)], delay=0.004)
    calls = [mesh.submit(gateway, submission(key, (key, 2, 3), 36)) for key in (1, 2, 3)]
    call = preempted(mesh, calls)
    mesh.cancel(gateway, call)
    settle(mesh)
    assert trail(call).states == ("PREEMPTED",)
    assert trail(call).release_s is None
    assert trail(call).freed_s > 0


def test_one_whose_reader_is_behind_costs_nothing_more() -> None:
    mesh, gateway = prepared()
    call = mesh.submit(gateway, submission(1, max_tokens=30))
    mesh.run(until=0.1)
    mesh.pause(gateway, call)
    mesh.run(until=0.2)
    mesh.cancel(gateway, call)
    settle(mesh)
    assert trail(call).states == ("PAUSED",)
    assert trail(call).release_s == 0.0
    assert 0 < trail(call).freed_s <= 2 * STEP_S
    assert trail(call).late_gpu_us == 0


def test_a_deadline_leaves_its_trail_at_the_end_of_each_output() -> None:
    mesh, gateway = prepared()
    call = mesh.submit(gateway, submission(1, max_tokens=100, n=2, deadline_s=0.1))
    settle(mesh)
    judge(call)
    trails = [end.trail for output in call.outputs for end in output.ends]
    assert [each and each.reason for each in trails] == [CancelReason.DEADLINE] * 2
    assert all(each is not None and each.states == ("DECODE", "DECODE") for each in trails)


def test_a_stopped_output_has_a_trail_of_its_own_and_one_that_ends_well_has_none() -> None:
    mesh, gateway = prepared()
    call = mesh.submit(gateway, submission(1, max_tokens=30, n=2))
    mesh.run(until=0.1)
    mesh.stop(gateway, call, 1)
    settle(mesh)
    judge(call)
    first, second = (output.ends[0] for output in call.outputs)
    assert (first.reason, first.trail) == (EndReason.LENGTH, None)
    assert second.trail is not None
    assert (second.trail.reason, second.trail.states) == (CancelReason.STOP_STRING, ("DECODE",))


def storm(mesh: VirtualMesh, gateway: VirtualGateway, reasons: list[CancelReason]) -> None:
    for key, reason in enumerate(reasons):
        mesh.cancel(gateway, mesh.submit(gateway, submission(key, max_tokens=20)), reason)


def test_they_are_counted_by_origin() -> None:
    mesh, gateway = prepared()
    other = mesh.attach_gateway(2)
    mesh.submit(other, submission(1, max_tokens=50))
    storm(mesh, gateway, [CancelReason.CLIENT] * 3 + [CancelReason.OPERATOR])
    mesh.run(until=0.1)
    mesh.lose_gateway(other)
    settle(mesh)
    cancels = mesh.core.traffic(mesh.now, 10).cancels
    assert {reason.name: each.count for reason, each in cancels.items()} == {
        "CLIENT": 3,
        "OPERATOR": 1,
        "LINK_LOST": 1,
    }
    assert cancels[CancelReason.LINK_LOST].total_s > 0


def test_a_worker_that_has_a_sequence_which_nobody_knows_is_told_to_drop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh, gateway = prepared(num_steps=1)
    call = mesh.submit(gateway, submission(1, max_tokens=30))
    apply, orphan, steps = mesh.core.apply, 999, []

    def report(event: Event, now: float) -> list[Action]:
        if isinstance(event, StepReported) and not steps:
            steps.append(event)
            event = replace(event, sequence_ids=(orphan, *event.sequence_ids), token_ids=(5, *event.token_ids))
        return apply(event, now)

    monkeypatch.setattr(mesh.core, "apply", report)
    settle(mesh)
    judge(call)
    told = [action.command for action in mesh.sent if isinstance(action.command, Release)]
    assert told == [Release((orphan,), ReleaseCause.CANCEL)]
    (found,) = (log.fields for log in mesh.logs if log.event == "orphans_found")
    assert found["sequence_ids"] == [orphan]
