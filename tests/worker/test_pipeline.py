"""Steps that begin behind others: texts, and the order of what is told, are as if each waited for the one before."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq

import pytest
import torch

from tests.worker.captured_bench import CapturedBench, S
from tests.worker.recall_model import continuation
from tests.worker.stepped_executor import ended_of, steps_of, tokens_of
from worker.messages import (
    Attach,
    Chunk,
    EndReason,
    Event,
    NewSequence,
    Plan,
    PlanDone,
    Release,
    ReleaseCause,
    Released,
    StepResult,
)
from worker.ops.follow import NONE
from worker.step_rows import StepRows
from worker.steps import Row


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Of each step that is filled with rows that follow: whom."""
    found: list[list[int]] = []
    fill_rows = StepRows._fill_rows

    def noted(self: StepRows, rows: Seq[Row]) -> object:
        follows = [row.follows for row in rows if row.follows != NONE]
        if follows:
            found.append(follows)
        return fill_rows(self, rows)

    monkeypatch.setattr(StepRows, "_fill_rows", noted)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_newcomer_and_the_run_behind_it_wait_for_no_token(seed: int, followed: list[list[int]]) -> None:
    bench = CapturedBench(128, seed)
    bench.obey(NewSequence(1, (5,), 60), NewSequence(2, (6, 7), 60))
    bench.obey(Plan(1, 30, (Chunk(1, 1), Chunk(2, 2)), (1, 2)))
    bench.step(4)
    # The run behind the prefill.
    assert followed == [[0, 1]]
    bench.obey(NewSequence(3, (8, 9), 60), Plan(2, 9, (Chunk(3, 2),), (3,), 1))
    # Begun, and not told: the steps before it are, first.
    assert len(bench.works) == 2
    assert bench.done() == []
    bench.step(20)
    # Its step follows one that was on its way, if one was.
    assert followed in ([[0, 1], [0, 1], [0, 1, 2]], [[0, 1], [0, 1, 2]])
    (first, steps_run, revoked), *rest = bench.done()
    assert (first, revoked, rest) == (1, True, [(2, 9, False)])
    told = [(step.plan_seq, step.step) for step in steps_of(bench.events)]
    assert told == [*((1, number) for number in range(steps_run)), *((2, number) for number in range(9))]
    for number, prompt in ((1, [5]), (2, [6, 7])):
        assert tokens_of(bench.events, number) == continuation(prompt, steps_run + 9)
    assert tokens_of(bench.events, 3) == continuation([8, 9], 9)


@pytest.mark.parametrize("num_before", range(1, 6))
def test_who_ends_while_others_begin_behind_is_an_empty_row(num_before: int) -> None:
    """By a stop id, which the host does not foresee, at every place around the newcomer's step."""
    for seed in range(8):
        text = continuation([9, 9], 30)
        stop = next(token for at, token in enumerate(text) if token not in text[:at] and at >= 3)
        at = text.index(stop)
        bench = CapturedBench(128, seed)
        bench.obey(NewSequence(1, (9, 9), 40, frozenset({stop})), NewSequence(2, (4,), 31))
        bench.obey(Plan(1, 64, (Chunk(1, 2), Chunk(2, 1)), (1, 2)))
        bench.step(num_before)
        bench.obey(NewSequence(3, (7,), 20), Plan(2, 64, (Chunk(3, 1),), (3,), 1))
        bench.step(60)
        assert tokens_of(bench.events, 1) == text[: at + 1]
        assert ended_of(bench.events)[1].reason is EndReason.STOP
        assert tokens_of(bench.events, 2) == continuation([4], 30)
        assert tokens_of(bench.events, 3) == continuation([7], 19)
        assert bench.kv_cache.counts().used == 0


def test_a_prompt_in_several_chunks_goes_on_behind_its_own_step(followed: list[list[int]]) -> None:
    bench = CapturedBench(128)
    prompt = tuple(range(1, 30))
    bench.obey(NewSequence(1, (5,), 60), Plan(1, 2, (Chunk(1, 1),), (1,)))
    bench.step(2)
    bench.obey(NewSequence(2, prompt, 60))
    bench.obey(*(Plan(number, 1, (Chunk(2, 10),), (2,)) for number in range(2, 5)), Plan(5, 6))
    bench.step(12)
    assert len(followed) == 4
    assert tokens_of(bench.events, 2) == continuation(list(prompt), 7)
    assert tokens_of(bench.events, 1) == continuation([5], 11)
    prefills = [prefill.num_computed for step in steps_of(bench.events) for prefill in step.prefills]
    assert prefills == [1, 10, 20, 29]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cause", [ReleaseCause.CANCEL, ReleaseCause.SWAP])
def test_others_go_on_behind_the_steps_of_one_that_is_let_go(seed: int, cause: ReleaseCause) -> None:
    bench = CapturedBench(128, seed)
    bench.obey(*(NewSequence(number, (number,), 60) for number in (1, 2, 3)))
    bench.obey(Plan(1, 30, tuple(Chunk(number, 1) for number in (1, 2, 3)), (1, 2, 3)))
    bench.step(3)
    bench.obey(Release((2, 77), cause))
    assert len(bench.works) == 2
    bench.step(29)
    answers = [event for event in bench.events if isinstance(event, Released)]
    assert [(answer.sequence_id, answer.found) for answer in answers] == [(2, True), (77, False)]
    got = tokens_of(bench.events, 2)
    assert tokens_of(bench.events[: bench.events.index(answers[0])], 2) == got == continuation([2], len(got))
    assert 3 <= len(got) < 6
    for number in (1, 3):
        assert tokens_of(bench.events, number) == continuation([number], 30)
    assert bench.done() == [(1, 30, False)]
    bench.obey(Release((1, 3), ReleaseCause.CANCEL))
    assert bench.kv_cache.counts().used == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_lost_scheduler_leaves_nothing_of_what_has_begun(seed: int) -> None:
    bench = CapturedBench(128, seed)
    bench.obey(NewSequence(1, (5,), 60), Plan(1, 30, (Chunk(1, 1),), (1,)))
    bench.step(3)
    bench.obey(NewSequence(2, (8, 9), 60), Plan(2, 9, (Chunk(2, 2),), (2,), 1))
    assert len(bench.works) == 2
    later: list[Event] = []
    bench.obey(Attach(later.append))
    # Behind the plan, which waits for the steps before its own.
    bench.step(6)
    assert not bench.works
    assert bench.kv_cache.counts().used == 0
    assert bench.executor.idle
    assert [(done.plan_seq, done.revoked) for done in bench.events if isinstance(done, PlanDone)] == [(1, True)]
    assert not any(isinstance(event, (StepResult, PlanDone)) for event in later)


@pytest.mark.parametrize("failing", ["fill", "fill_run"])
def test_what_cannot_begin_ends_alone(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a run that goes on: what it has computed by then is told."""
    bench = CapturedBench(128)
    bench.obey(NewSequence(1, (5,), 60), Plan(1, 30, (Chunk(1, 1),), (1,)))
    bench.step(3)

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(StepRows, failing, fail)
    bench.obey(NewSequence(2, (8, 9), 60), Plan(2, 9, (Chunk(2, 2),), (2,), 1))
    bench.step(4)
    ended = ended_of(bench.events)
    assert {number: end.failure.message for number, end in ended.items() if end.failure} == dict.fromkeys(
        (1, 2), "the step failed: RuntimeError"
    )
    told = tokens_of(bench.events, 1)
    assert told == continuation([5], len(told))
    assert bench.kv_cache.counts().used == 0
    monkeypatch.undo()
    bench.obey(NewSequence(3, (7,), 20), Plan(3, 30, (Chunk(3, 1),), (3,)))
    bench.step(30)
    assert tokens_of(bench.events, 3) == continuation([7], 19)


def test_what_is_told_of_blocks_is_what_is_computed() -> None:
    bench = CapturedBench(128)
    bench.obey(NewSequence(1, (1,) * S, 80), Plan(1, 32, (Chunk(1, S),), (1,)))
    bench.step(6)
    bench.obey(NewSequence(2, (2,) * (2 * S), 80), Plan(2, 32, (Chunk(2, 2 * S),), (2,), 1))
    bench.step(40)
    computed = {1: S - 1, 2: 2 * S - 1}
    for step in steps_of(bench.events):
        for number in step.sequence_ids:
            computed[number] += 1
        known = [1, 2] if tokens_of([step], 2) or tokens_of(bench.events[: bench.events.index(step)], 2) else [1]
        assert step.blocks.used == sum(-(-computed[number] // S) for number in known)


@pytest.mark.parametrize("seed", range(30))
def test_arrivals_and_cancels_at_any_moment(seed: int) -> None:
    rng = random.Random(seed)
    bench = CapturedBench(rng.choice([40, 60, 400]), seed)
    prompts: dict[int, list[int]] = {}
    expected: dict[int, list[int]] = {}
    missing: dict[int, int] = {}
    cancelled: set[int] = set()
    plan_seq = 0
    for _ in range(60):
        action = rng.random()
        live = prompts.keys() - ended_of(bench.events).keys() - cancelled
        if action < 0.3 and len(live) < 8:
            number = len(prompts)
            shared = [7] * S if rng.random() < 0.3 else []
            prompts[number] = [*shared, *(rng.randrange(90) for _ in range(rng.choice([1, 3, 9, 30])))]
            text = continuation(prompts[number], rng.choice([1, 2, 6, 25]))
            stops = frozenset(rng.sample(range(90), rng.choice([0, 3, 12])))
            end = next((at for at, token in enumerate(text) if token in stops), len(text) - 1)
            expected[number] = text[: end + 1]
            missing[number] = len(prompts[number])
            bench.executor.submit(NewSequence(number, tuple(prompts[number]), len(prompts[number]) + len(text), stops))
        if action < 0.5:
            plan_seq += 1
            chunks = {key: min(count, rng.choice([2, 8, 40])) for key, count in missing.items()}
            join = tuple(missing)
            revoke = plan_seq - 1 if rng.random() < 0.7 else 0
            bench.executor.submit(
                Plan(plan_seq, rng.choice([1, 2, 9]), tuple(map(Chunk, chunks, chunks.values())), join, revoke)
            )
        elif action < 0.6:
            plan_seq += 1
            bench.executor.submit(Plan(plan_seq, rng.choice([1, 5])))
        elif action < 0.65 and live:
            number = rng.choice(sorted(live))
            cancelled.add(number)
            missing.pop(number, None)
            bench.executor.submit(Release((number,), rng.choice([ReleaseCause.CANCEL, ReleaseCause.PREEMPT])))
        if rng.random() < 0.7:
            bench.executor.obey()
        bench.step(rng.choice([0, 1, 2, 5]))
    while bench.executor._plans or len(bench.executor._mailbox):
        bench.step()
    # Whatever is left.
    for _ in range(3):
        plan_seq += 1
        left = sorted(prompts.keys() - ended_of(bench.events).keys() - cancelled)
        bench.obey(Plan(plan_seq, 40, tuple(Chunk(number, 64) for number in left), tuple(left)))
        while bench.executor._plans:
            bench.step()
    for number in prompts:
        got = tokens_of(bench.events, number)
        failed = number in ended_of(bench.events) and ended_of(bench.events)[number].failure is not None
        short = number in cancelled or failed
        assert got == (expected[number][: len(got)] if short else expected[number]), number
        assert not failed or "blocks" in ended_of(bench.events)[number].failure.message  # type: ignore[union-attr]
    assert bench.kv_cache.counts().used == 0
    in_order = [(each.plan_seq, each.step) for each in bench.events if isinstance(each, StepResult)]
    assert in_order == sorted(in_order)
    steps_run = {each.plan_seq: each.steps_run for each in bench.events if isinstance(each, PlanDone)}
    assert steps_run == {number: sum(plan == number for plan, _ in in_order) for number in range(1, plan_seq + 1)}
