"""What a plan log says of a request: causes that were planted are told, and named first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from recorded import dumped, live, record, reread

from scheduler.admission import AdmissionMode
from scheduler.events import TenantsChanged
from scheduler.plan_log.recorder import Recorder
from scheduler.plan_log.storyteller import tell
from scheduler.simulator.cost import StepCost
from scheduler.simulator.gateway import VirtualGateway
from scheduler.simulator.mesh import VirtualMesh, submission
from scheduler.simulator.small import GREEDY, worker_info
from scheduler.tenant import NamedPlan
from scheduler.traffic_class import CLASSES, TrafficClass
from tercet.explain.explanation import Explanation, explain
from tercet.explain.headline import headline
from tercet.explain.parts import Kind
from tercet.explain.story import Cause, Limit, Place, Story

LONG = tuple(range(1, 30))


class Mesh:
    """A mesh with one gateway and one worker, recorded from its first moment."""

    def __init__(self, classes: Sequence[TrafficClass] = tuple(CLASSES.values()), **info: Any) -> None:
        infos = [worker_info(**info)] * 2
        self.mesh = VirtualMesh(infos, classes=classes, admission_mode=AdmissionMode.OFF)
        self.tape: Recorder = record(self.mesh)
        self.gateway: VirtualGateway = self.mesh.attach_gateway()
        self.worker = self.mesh.attach_worker()

    def submit(self, key: int, *prompt_and_tokens: Any, **fields: Any) -> Any:
        return self.mesh.submit(self.gateway, submission(key, *prompt_and_tokens, **fields))

    def at(self, moment: float, move: Callable[[], Any]) -> None:
        self.mesh.at(moment, move)

    def story(self, key: int) -> Story:
        """When all is over."""
        self.mesh.run()
        return self.told(key)

    def told(self, key: int) -> Story:
        """As it is now."""
        (story,) = tell(reread(dumped(self.tape, self.mesh.now)), f"req-{key}")
        return story


def explained(story: Story) -> Explanation:
    return explain(story.request_id, None, [story], now=story.until)


def says(story: Story) -> str:
    """The sentence, of what took a third of the time at least."""
    sentence = headline(explained(story))
    longest = explained(story).longest
    assert longest is not None
    assert longest.seconds > explained(story).total_s / 3
    return sentence


def test_one_that_runs_alone() -> None:
    mesh = Mesh()
    mesh.submit(1, LONG, 20)
    story = mesh.story(1)
    assert (story.outcome, story.whole, story.prompt_tokens) == ("LENGTH", True, 29)
    (output,) = story.outputs
    assert [stretch.place for stretch in output.stretches] == [Place.PREFILL, Place.DECODE]
    assert (output.tokens, output.chunks, output.chunk_tokens) == (20, 2, 29)
    assert output.plans
    assert output.planned_steps >= 17
    assert "20 tokens were generated in steps of 10 ms" in says(story)


def test_one_that_waits_for_blocks() -> None:
    mesh = Mesh(num_blocks=20)
    for key in range(1, 6):
        mesh.submit(key, LONG, 30)
    mesh.submit(99, LONG[:9], 4)
    story = mesh.story(99)
    (waited, *_) = story.outputs[0].stretches
    assert (waited.place, waited.cause, waited.limits[0][0]) == (Place.QUEUED, Cause.ARRIVED, Limit.BLOCKS)
    started = sum(each.count for each in story.served)
    assert f"waited for KV blocks behind {started} requests of its class" in says(story)


def test_one_that_waits_for_a_slot_behind_another_class() -> None:
    mesh = Mesh(num_blocks=400, max_num_seqs=2)
    for key in range(1, 6):
        mesh.submit(key, LONG, 30, traffic_class="interactive")
    mesh.submit(99, LONG[:9], 4, traffic_class="batch")
    assert "waited for a slot on a worker behind 3 requests of interactive" in says(mesh.story(99))


def test_one_that_waits_for_tokens_of_a_step() -> None:
    mesh = Mesh(num_blocks=64)
    for key in range(1, 7):
        mesh.submit(key, (key, *LONG), 2)
    mesh.submit(99, LONG[:9], 2)
    assert "waited for room for its prompt in a step" in says(mesh.story(99))


def test_one_whose_tenant_has_its_share() -> None:
    mesh = Mesh(num_blocks=64)
    mesh.mesh.post(TenantsChanged(1, 1, (NamedPlan("one", kv_share=0.25), NamedPlan("two"))))
    mesh.submit(1, LONG, 30, tenant="one")
    mesh.at(0.2, lambda: mesh.submit(2, LONG[:12], 4, tenant="one"))
    assert "waited for blocks of its tenant's share" in says(mesh.story(2))


def test_one_whose_class_has_its_places() -> None:
    mesh = Mesh([dataclasses.replace(each, max_running=1) for each in CLASSES.values()], num_blocks=64)
    mesh.submit(1, LONG, 40)
    mesh.submit(2, LONG[:12], 4)
    assert "waited for a place among those of its class on a worker" in says(mesh.story(2))


def test_one_that_gives_way() -> None:
    mesh = Mesh(num_blocks=16)
    for key in range(1, 5):
        mesh.submit(key, LONG[:9], 40)
    story = mesh.story(3)
    (output,) = story.outputs
    assert output.preemptions == 1
    assert [(each.place, each.cause) for each in output.stretches[2:4]] == [
        (Place.LEAVING, Cause.GAVE_WAY), (Place.QUEUED, Cause.GAVE_WAY),
    ]  # fmt: skip
    assert "it had to give way to others, and it waited for KV blocks" in says(story)
    assert output.again_tokens > 0


def test_one_whose_client_does_not_read() -> None:
    mesh = Mesh()
    call = mesh.submit(1, (1, 2, 3), 40)
    mesh.at(0.1, lambda: mesh.mesh.pause(mesh.gateway, call))
    mesh.at(1.9, lambda: mesh.mesh.unpause(mesh.gateway, call))
    story = mesh.story(1)
    assert (story.pauses, round(story.paused_s, 2)) == (1, 1.8)
    assert says(story).startswith("1.8 s of 2.19 s: its client was far behind with reading")


def test_one_with_a_slow_step() -> None:
    mesh = Mesh()
    mesh.submit(1, (1, 2, 3), 40)
    mesh.at(0.2, lambda: setattr(mesh.worker, "_cost", StepCost(2.0)))
    mesh.at(0.25, lambda: setattr(mesh.worker, "_cost", StepCost(0.01)))
    story = mesh.story(1)
    gap = story.outputs[0].gap
    assert gap is not None
    assert gap.decoding
    assert gap.steps[0].seconds == 2.0
    assert "one step of host:1 took 2 s: it computed 1 token" in says(story)


def test_a_slow_step_says_whose_prompts_it_computed() -> None:
    mesh = Mesh(num_blocks=64, max_num_batched_tokens=64)
    mesh.submit(1, (1, 2, 3), 40)
    mesh.at(0.2, lambda: setattr(mesh.worker, "_cost", StepCost(0.0, 0.02)))
    mesh.at(0.2, lambda: [mesh.submit(key, (key, *LONG[:24]), 1) for key in (2, 3)])
    mesh.at(0.4, lambda: setattr(mesh.worker, "_cost", StepCost(0.01)))
    gap = mesh.story(1).outputs[0].gap
    assert gap is not None
    assert (gap.steps[0].prompts, gap.steps[0].prompt_tokens) in [(1, 25), (2, 50)]
    assert " of them of " in says(mesh.told(1))


@pytest.mark.parametrize("compiled_at", [0.4, None])
def test_one_whose_grammar_is_not_compiled_yet(compiled_at: float | None) -> None:
    mesh = Mesh(num_blocks=64)
    mesh.worker.compiling = True
    mesh.submit(1, (1, 2, 3), 100)
    mesh.submit(99, LONG[:9], 4, sampling=dataclasses.replace(GREEDY, grammar=b"any", has_grammar=True))
    if compiled_at is not None:
        mesh.at(compiled_at, lambda: setattr(mesh.worker, "compiling", False))
    mesh.mesh.run(until=0.8)
    story = mesh.told(99)
    assert not story.problem
    assert "its grammar was not compiled at its worker yet" in says(story)
    parts = {part.kind: part.seconds for stage in explained(story).stages for part in stage.parts}
    assert parts[Kind.GRAMMAR] == pytest.approx((compiled_at or 0.8) - 0.02, abs=0.03)
    assert parts[Kind.PROMPT] < 0.1
    other = mesh.told(1)
    assert other.outputs[0].grammar is None


def test_one_that_its_client_cancels() -> None:
    mesh = Mesh()
    call = mesh.submit(1, (1, 2, 3), 40)
    mesh.at(0.2, lambda: mesh.mesh.cancel(mesh.gateway, call))
    story = mesh.story(1)
    assert story.cancel is not None
    assert (story.cancel.reason, story.cancel.states) == ("client", ("DECODE",))
    assert story.cancel.freed_at == story.ended_at
    assert headline(explained(story)).startswith("cancelled (client, in decode) after 20")


def test_one_that_is_cancelled_while_it_waits() -> None:
    mesh = Mesh(max_num_seqs=1)
    mesh.submit(1, LONG, 40)
    call = mesh.submit(2, LONG, 40)
    mesh.at(0.2, lambda: mesh.mesh.cancel(mesh.gateway, call))
    sentence = headline(explained(mesh.story(2)))
    assert sentence.startswith("cancelled (client, in the queue) after 200 ms; 200 ms of 200 ms: waited for a slot")


def test_one_whose_worker_is_lost_goes_on_elsewhere() -> None:
    mesh = Mesh()
    mesh.submit(1, (1, 2, 3), 40)
    mesh.at(0.2, lambda: mesh.mesh.lose_worker(mesh.worker))
    mesh.at(1.2, lambda: mesh.mesh.attach_worker(1))
    story = mesh.story(1)
    (output,) = story.outputs
    assert output.losses == 1
    assert [each.worker for each in output.stretches if each.worker] == ["host:1", "host:1", "host:2", "host:2"]
    assert "its worker was lost, and it waited for a worker that can run it" in says(story)


def test_one_that_moves_to_another_worker() -> None:
    mesh = Mesh()
    mesh.submit(1, (1, 2, 3), 40)
    mesh.at(0.1, lambda: mesh.mesh.attach_worker(1))
    mesh.at(0.2, lambda: mesh.mesh.drain_worker(mesh.worker))
    (output,) = mesh.story(1).outputs
    assert (output.moves, output.losses, output.preemptions) == (1, 0, 0)
    assert {each.cause for each in output.stretches if each.place is Place.LEAVING} == {Cause.MOVED}


def test_one_that_is_refused() -> None:
    mesh = Mesh()
    mesh.submit(1, (1, 2, 3), 4000)
    story = mesh.story(1)
    assert (story.refused, story.outputs) == ("PROMPT_TOO_LONG", ())
    assert headline(explained(story)).startswith("refused: PROMPT_TOO_LONG: prompt of 3 + max_tokens 4000 tokens")


def test_one_that_runs() -> None:
    mesh = Mesh()
    mesh.submit(1, (1, 2, 3), 40)
    mesh.mesh.run(0.2)
    story = mesh.told(1)
    assert story.ended_at is None
    assert explained(story).running
    assert "so far: " in headline(explained(story))


def test_one_that_was_there_before_the_plan_log() -> None:
    mesh = Mesh()
    call = mesh.submit(1, (1, 2, 3), 40)
    mesh.mesh.run(0.2)
    mesh.tape = Recorder(mesh.mesh.core._core, mesh.tape._lookup, 100)  # type: ignore[attr-defined]
    mesh.mesh.core.tape = mesh.tape  # type: ignore[attr-defined]
    story = mesh.story(1)
    assert call.over
    assert not story.whole
    assert story.arrived_at < story.log_began_at
    assert 0 < story.outputs[0].tokens < 40


def test_several_outputs() -> None:
    mesh = Mesh()
    mesh.submit(1, LONG, 12, n=3)
    story = mesh.story(1)
    assert [(each.index, each.tokens) for each in story.outputs] == [(0, 12), (1, 12), (2, 12)]


def test_only_those_that_are_asked_for_are_told() -> None:
    mesh = Mesh()
    for key in (1, 2, 21):
        mesh.submit(key)
    mesh.mesh.run()
    file = reread(dumped(mesh.tape, mesh.mesh.now))
    assert [each.request_id for each in tell(file, "req-2")] == ["req-2", "req-21"]
    assert len(tell(file, "")) == 3
    assert tell(file, "other") == []


@pytest.mark.parametrize("seed", range(12))
def test_of_random_lives_everything_is_told(seed: int) -> None:
    mesh, tape = live(seed, max_rounds=1_000_000)
    stories = {story.request_id: story for story in tell(reread(dumped(tape, mesh.now)), "")}
    calls = [call for gateway in mesh.gateways.values() for call in gateway.calls.values()]
    assert {call.submission.request_id for call in calls} == stories.keys()
    for call in calls:
        story = stories[call.submission.request_id]
        assert story.problem == ""
        assert story.refused == (call.refused or "")
        if call.refused or not call.accepted:
            continue
        total_s = explained(story).total_s
        assert story.ended_at is not None
        last = story.last_output
        assert last is not None
        # From its arrival to its end without a hole.
        moments = [each for stretch in last.stretches for each in (stretch.began_at, stretch.ended_at)]
        assert moments[1:-1:2] == moments[2::2]
        if moments:
            assert (moments[0], moments[-1]) == (story.arrived_at, story.ended_at)
            assert total_s == pytest.approx(story.ended_at - story.arrived_at, abs=1e-5)
        if not call.cancelled and not any(output.stopped for output in call.outputs):
            assert sum(each.tokens for each in story.outputs) == sum(len(output.tokens) for output in call.outputs)
        if story.outcome in ("STOP", "LENGTH"):
            assert all(part.kind is not Kind.RELEASE for stage in explained(story).stages for part in stage.parts)
