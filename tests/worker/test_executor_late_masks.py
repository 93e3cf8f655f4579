"""Masks that are late: who has no grammar goes on, who has its mask goes on, and the scheduler hears of the worker."""

from __future__ import annotations

import queue
from typing import Any

from tercet.grammar.grammar import Grammar, Syntax
from tests.mesh.models import HashModel
from tests.worker.grammar_process import END, LocalGrammars
from tests.worker.stepped_executor import SteppedExecutor, ended_of, steps_of, tokens_of
from worker.executor import HOLD_S
from worker.messages import (
    Attach,
    Chunk,
    EndReason,
    Event,
    NewSequence,
    PlanDone,
    Release,
    ReleaseCause,
    Sampling,
    Structure,
)

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)


def masked(key: int, regex: str = "[ab]{3}") -> NewSequence:
    structure = Structure(Grammar(Syntax.REGEX, regex), len(PROMPT), (END,))
    return NewSequence(key, PROMPT, len(PROMPT) + 9, frozenset({END}), Sampling(structure=structure))


def plain(key: int) -> NewSequence:
    return NewSequence(key, (8, 8, key), 3 + 5)


def joined(*keys: int) -> dict[str, Any]:
    return {"chunks": tuple(Chunk(key, 99) for key in keys), "join": keys}


class Late(SteppedExecutor):
    """Masks come when they are told to. Time passes when it is told to."""

    def __init__(self, **fields: Any) -> None:
        self.now = 0.0
        self.grammars = LocalGrammars()
        self.grammars.prompt = False
        super().__init__(model=HashModel(), grammars=self.grammars, clock=lambda: self.now, **fields)

    def steps(self, count: int) -> list[Event]:
        """The thread's turns, without a moment between them."""
        first = len(self.events)
        for _ in range(count):
            self.executor.obey()
            self.executor.step()
        return self.events[first:]

    @property
    def num_done(self) -> int:
        return sum(isinstance(event, PlanDone) for event in self.events)


def test_a_plan_with_something_to_compute_does_not_wait_behind_one_that_has_nothing() -> None:
    worker = Late()
    # As the scheduler has it: two short plans ahead, and it sends no third before one of them ends.
    worker.obey(masked(1), masked(2), worker.plan(1, **joined(1, 2)), worker.plan(1, **joined(1, 2)))
    worker.steps(4)
    assert worker.num_done == 1
    events = worker.obey(plain(4), worker.plan(9, **joined(4))) + worker.steps(20)
    assert len(tokens_of(events, 4)) == 5
    assert ended_of(events)[4].reason is EndReason.LENGTH


def test_the_scheduler_hears_of_a_worker_that_waits_for_masks_alone_and_may_send_another_plan() -> None:
    worker = Late()
    worker.obey(masked(1), masked(2), worker.plan(1, **joined(1, 2)), worker.plan(30, **joined(1, 2)))
    worker.obey(worker.plan(30))
    worker.steps(9)
    assert (worker.num_done, len(steps_of(worker.events))) == (1, 1)
    turns = worker.executor.num_turns
    worker.now += HOLD_S
    events = worker.steps(9)
    # One plan for each time that it has waited for so long, however many there are.
    assert worker.num_done == 2
    (step,) = steps_of(events)
    assert (step.step_us, step.sequence_ids, step.prefills) == (0, (), ())
    assert worker.executor.num_turns > turns
    worker.now += HOLD_S / 2
    worker.steps(9)
    assert worker.num_done == 2
    worker.now += HOLD_S / 2
    worker.steps(9)
    assert worker.num_done == 3
    assert not worker.executor._plans
    # And they go on when their masks are there.
    worker.grammars.prompt = True
    events = worker.run(worker.plan(30, **joined(1, 2)))
    assert len(tokens_of(events, 1)) == len(tokens_of(events, 2)) == 4


def test_who_has_its_mask_does_not_wait_for_that_of_another() -> None:
    worker = Late()
    worker.obey(masked(1), worker.plan(9, **joined(1)))
    worker.steps(3)
    # The plan has begun: what is left of the prompt is a matter of the next one.
    worker.grammars.process.answer_all()
    worker.obey(masked(2))
    events = worker.steps(3)
    assert tokens_of(events, 1) == []
    events += worker.obey(worker.plan(1, **joined(1, 2))) + worker.steps(3)
    assert len(tokens_of(events, 1)) == 1


def test_a_plan_that_others_join_who_wait_as_well_is_not_asked_for_again_and_again() -> None:
    worker = Late()
    worker.obey(masked(1), masked(2), worker.plan(1, **joined(1, 2)))
    worker.steps(4)
    worker.obey(worker.plan(1, **joined(1, 2)), worker.plan(1, **joined(1)), worker.plan(9, join=(1, 2)))
    worker.steps(30)
    assert worker.num_done == 1


def test_one_that_may_go_on_is_joined_though_all_others_wait() -> None:
    worker = Late()
    worker.obey(plain(4), worker.plan(1, chunks=(Chunk(4, 99),)))
    worker.steps(2)
    worker.obey(masked(1), worker.plan(1, **joined(1)), worker.plan(1, **joined(1)))
    worker.steps(4)
    events = worker.obey(worker.plan(9, join=(4,))) + worker.steps(20)
    assert len(tokens_of(worker.events, 4)) == 5
    assert 4 in ended_of(events)


def test_one_that_waits_is_let_go_at_once() -> None:
    worker = Late()
    worker.obey(masked(1), worker.plan(1, **joined(1)), worker.plan(1, **joined(1)))
    worker.steps(4)
    worker.obey(Release((1,), ReleaseCause.CANCEL))
    worker.steps(4)
    assert worker.num_done == 2
    assert worker.executor.idle


def test_by_its_thread_the_plain_ones_end_while_no_mask_ever_comes() -> None:
    bench = Late()
    events: queue.Queue[Event] = queue.Queue()
    executor = bench.executor
    executor.submit(Attach(events.put))
    executor.start()
    try:
        executor.submit(masked(1))
        executor.submit(masked(2))
        for _ in range(3):
            executor.submit(bench.plan(1, **joined(1, 2)))
        executor.submit(plain(4))
        executor.submit(bench.plan(9, **joined(4)))
        seen: list[Event] = []
        while 4 not in ended_of(seen):
            seen.append(events.get(timeout=30))
        assert len(tokens_of(seen, 4)) == 5
        # One that waits for masks alone ends as the clock goes.
        executor.submit(bench.plan(1, **joined(1, 2)))
        last = bench._plan_seq
        while not any(isinstance(event, PlanDone) and event.plan_seq == last for event in seen):
            bench.now += HOLD_S
            seen.append(events.get(timeout=30))
    finally:
        assert executor.stop()
