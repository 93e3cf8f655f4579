"""What a recorder kept, on a fresh core: the same decisions, and a difference where something was changed."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded import FOREVER, dumped, live, record, reread

from scheduler import dispatch
from scheduler.events import StepReported, Submitted, WorkerAttached
from scheduler.plan_log.plan_file import PlanFile
from scheduler.plan_log.replay import Outcome, Played, replay
from scheduler.plan_log.view import round_lines
from scheduler.planner import Decision
from scheduler.simulator.mesh import VirtualMesh, submission
from scheduler.simulator.small import GREEDY, worker_info


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), max_rounds=st.sampled_from([FOREVER, 200, 40, 2]))
def test_a_replay_decides_the_same(seed: int, max_rounds: int) -> None:
    """From the first round, and from checkpoints in the middle of everything."""
    mesh, tape = live(seed, max_rounds)
    file = reread(dumped(tape, mesh.now))
    lines: list[str] = []
    outcome = replay(file, lambda played: lines.extend(round_lines(file, played)))
    assert outcome.equal, outcome
    assert outcome.rounds == len(file.rounds) <= max(2, max_rounds)
    assert len(lines) >= outcome.events


def test_a_replay_learns_the_same_of_those_that_follow_a_grammar() -> None:
    """Grammars are hidden, and who follows one teaches nothing: a replay that did not know would forecast otherwise."""
    following = dataclasses.replace(GREEDY, grammar=b"any", has_grammar=True)
    mesh = VirtualMesh([worker_info()])
    tape = record(mesh)
    gateway = mesh.attach_gateway()
    mesh.attach_worker(0)
    for key in range(1, 9):
        mesh.submit(gateway, submission(key, sampling=following if key > 3 else GREEDY))
        mesh.run()
    known: list[Any] = []

    def watch(played: Played) -> None:
        known[:] = [each.off.view() for each in played.core.mesh.foresights.values()]

    assert replay(reread(dumped(tape, mesh.now)), watch).equal
    assert known == [each.off.view() for each in mesh.core._mesh.foresights.values()]
    # Of the three others the first was forecast by nothing.
    assert known[0].forecasts == 2


def test_the_lives_have_everything_in_them() -> None:
    """A replay of lives in which nothing happens would prove nothing."""
    seen: Counter[str] = Counter()
    for seed in range(25):
        mesh, tape = live(seed, FOREVER)
        file = reread(dumped(tape, mesh.now))
        assert replay(file).equal
        for each in file.rounds:
            seen.update(type(event).__name__ for event in each.events)
            seen.update(command["is"] for command in each.commands)
            seen["forks"] += sum(bool(command.get("forks")) for command in each.commands)
            seen["revoked"] += sum(bool(command.get("revoke_through")) for command in each.commands)
            seen["cached"] += any(each.cached[2::3])
            seen["swapped"] += sum(getattr(event, "swapped", False) for event in each.events)
        seen.update(log.event for log in mesh.logs)
        seen["made_room"] += any(log.fields.get("made_room") for log in mesh.logs)
        calls = [call for gateway in mesh.gateways.values() for call in gateway.calls.values()]
        seen.update(call.refused for call in calls if call.refused)
        seen.update(end.failure.reason for call in calls for end in call.ends if end.failure)
    wanted = (
        "Submitted CancelReceived SequenceStopped WorkerAttached WorkerLost WorkerDraining KvChanged StepReported "
        "PlanEnded SequenceReleased TimePassed GatewayLost NewSequence Plan Release Resume forks revoked cached "
        "swapped preempted made_room moved_away TenantsChanged INVALID_FIELD TENANT_QUOTA PERMISSION_DENIED QUEUE_FULL "
        "QUEUE_EXPIRED DropWorker worker_late"
    )
    assert not [name for name in wanted.split() if not seen[name]], seen


@pytest.fixture(scope="module")
def data() -> bytes:
    """A record with two workers, from a checkpoint in the middle."""
    mesh, tape = live(5, 300)
    return dumped(tape, mesh.now)


def changed(data: bytes, change: Callable[[dict[str, Any]], bool]) -> PlanFile:
    """The file, with `change` made to the first line that it takes."""
    lines = [json.loads(line) for line in data.splitlines()]
    assert any(change(line) for line in lines)
    return reread(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def test_one_other_number_in_a_command_is_found(data: bytes) -> None:
    def change(line: dict[str, Any]) -> bool:
        for command in line.get("commands", ()):
            if command["is"] == "Plan":
                command["num_steps"] += 1
                return True
        return False

    difference = replay(changed(data, change)).difference
    assert difference is not None
    assert difference.recorded is not None
    assert difference.made is not None
    assert difference.recorded["num_steps"] == difference.made["num_steps"] + 1


def test_one_other_number_in_an_event_is_found(data: bytes) -> None:
    def change(line: dict[str, Any]) -> bool:
        for event in line.get("events", ()):
            if event["is"] == "PlanEnded" and not event["revoked"]:
                event["plan_seq"] += 1000
                return True
        return False

    outcome = replay(changed(data, change))
    assert not outcome.equal
    assert outcome.strange or outcome.difference is not None


@pytest.mark.parametrize("name", ["sequence_id", "max_length", "prefill_length"])
def test_another_number_in_the_checkpoint_is_found(name: str) -> None:
    """In the middle of a prefill of many chunks."""
    mesh = VirtualMesh([worker_info(max_num_batched_tokens=4)], num_steps=1)
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    mesh.submit(gateway, submission(1, range(40), 4))
    mesh.run(0.05)
    tape = record(mesh)
    mesh.run()
    data = dumped(tape, mesh.now)
    assert replay(reread(data)).equal

    def change(line: dict[str, Any]) -> bool:
        found = [each for each in line["objects"] if each.get("is") == "Sequence"] if "objects" in line else []
        for each in found:
            each[name] += 3
        return bool(found)

    assert not replay(changed(data, change)).equal


def test_another_planner_is_found(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    make_plan = dispatch.make_plan

    def shorter(*arguments: Any) -> Decision:
        decision = make_plan(*arguments)
        return dataclasses.replace(decision, num_steps=min(decision.num_steps, 1))

    assert replay(reread(data)).equal
    monkeypatch.setattr(dispatch, "make_plan", shorter)
    difference = replay(reread(data)).difference
    assert difference is not None
    assert difference.problem == "another command is made"


def test_a_core_that_fails_is_a_difference(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Decision:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(dispatch, "make_plan", broken)
    difference = replay(reread(data)).difference
    assert difference is not None
    assert difference.problem == "the core failed: ZeroDivisionError: a bug"


def test_placement_is_told_what_it_was_told() -> None:
    """Two workers, one of which has the prefix: with no tokens in the file, only the answers can say so."""
    mesh = VirtualMesh([worker_info()] * 2, step_time=0.01)
    tape = record(mesh)
    gateway = mesh.attach_gateway()
    mesh.attach_worker(0)
    mesh.attach_worker(1)
    prompt = list(range(1, 21))
    mesh.submit(gateway, submission(1, prompt, 2))
    mesh.run()
    for key in range(2, 5):
        mesh.submit(gateway, submission(key, prompt, 2))
        mesh.run()
    file = reread(dumped(tape))
    assert any(tokens for each in file.rounds for tokens in each.cached[2::3])
    assert replay(file).equal
    first = next(index for index, each in enumerate(file.rounds) if any(each.cached[2::3]))
    each = file.rounds[first]
    swapped = tuple(number if index % 3 != 2 else 16 - number for index, number in enumerate(each.cached))
    file.rounds[first] = each._replace(cached=swapped)
    assert replay(file).difference is not None


def strange_of(events: Callable[[StepReported], StepReported]) -> Outcome:
    """A replay in which the last step that was reported is another one."""
    mesh = VirtualMesh(num_steps=4)
    tape = record(mesh)
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    mesh.submit(gateway, submission(1, max_tokens=6))
    mesh.run()
    file = reread(dumped(tape))
    index = max(i for i, each in enumerate(file.rounds) if any(isinstance(e, StepReported) for e in each.events))
    each = file.rounds[index]
    file.rounds[index] = each._replace(
        events=tuple(events(event) if isinstance(event, StepReported) else event for event in each.events)
    )
    return replay(file)


def test_a_report_of_a_sequence_that_was_not_sent_is_strange() -> None:
    outcome = strange_of(
        lambda event: dataclasses.replace(
            event, sequence_ids=(*event.sequence_ids, 99), token_ids=(*event.token_ids, 0)
        )
    )
    assert outcome.strange == 1
    assert outcome.first_strange is not None
    assert outcome.first_strange.problem == "link 1 reported of sequence 99, which it has not"
    # It would have been told to drop it.
    assert outcome.difference is not None
    assert outcome.difference.made == {
        "link": 1, "is": "Release", "sequence_ids": [99], "cause": {"enum": "ReleaseCause.CANCEL"},
    }  # fmt: skip
    assert not outcome.equal


def test_a_step_that_was_not_planned_is_strange() -> None:
    outcome = strange_of(lambda event: dataclasses.replace(event, step=event.step + 4))
    assert outcome.strange
    assert outcome.first_strange is not None
    assert "which it has not" in outcome.first_strange.problem
    # The core drops such a worker, which it did not when the record was made.
    assert outcome.difference is not None
    assert outcome.difference.made is not None
    assert outcome.difference.made["is"] == "DropWorker"


def test_events_are_rebuilt_as_they_were_but_for_tokens() -> None:
    mesh = VirtualMesh()
    tape = record(mesh)
    gateway = mesh.attach_gateway()
    worker = mesh.attach_worker()
    asked = submission(1, (5, 6, 7), 4, stop_token_ids=(9,), prefix_salt=b"salt", deadline_s=2.5, n=2, priority=-3)
    mesh.submit(gateway, asked)
    mesh.run()
    file = reread(dumped(tape))
    events = [event for each in file.rounds for event in each.events]
    (submitted,) = (event for event in events if isinstance(event, Submitted))
    assert submitted == Submitted(
        1, dataclasses.replace(asked, prompt_token_ids=(0, 0, 0), stop_token_ids=(0,), prefix_salt=b"")
    )
    (attached,) = (event for event in events if isinstance(event, WorkerAttached))
    assert attached == WorkerAttached(worker.link, "host:1", worker.info)
    steps = [event for event in events if isinstance(event, StepReported)]
    assert [step.sequence_ids for step in steps] == [(1, 2)] * 4
    assert all(step.token_ids == (0, 0) for step in steps)
