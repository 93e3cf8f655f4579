"""What a worker has done, counted by the thread that does it and read by others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.messages import BlockCounts, Ended, EndReason, PrefillProgress
from worker.outcome import Outcome
from worker.step_counts import DECODE, PROMPT, StepCounts, Waits

BLOCKS = BlockCounts(1, 2, 3)


def test_steps_are_told_apart_by_whether_they_computed_prompts() -> None:
    counts = StepCounts()
    prompt = Outcome([1, 2], [7, 7], [PrefillProgress(3, 40, 16)], chunk_sizes=[24])
    counts.step(prompt, 30_000, BLOCKS, 1.0)
    counts.step(Outcome([1], [7], ended=[Ended(1, EndReason.STOP, 0, 0)]), 5_000, BLOCKS, 2.0)
    assert (counts.step_s[PROMPT].count, counts.step_s[PROMPT].total) == (1, pytest.approx(0.03))
    assert (counts.step_s[DECODE].count, counts.step_s[DECODE].total) == (1, pytest.approx(0.005))
    assert (counts.tokens, counts.prompt_tokens) == (3, 24)
    assert counts.ended[EndReason.STOP] == 1
    assert counts.blocks == BLOCKS


def test_what_only_has_something_to_tell_is_no_step() -> None:
    counts = StepCounts()
    counts.step(Outcome(ended=[Ended(1, EndReason.FAILED, 0, 0)]), 5, BLOCKS, 1.0)
    counts.step(Outcome(step_us=0), 0, BLOCKS, 2.0)
    counts.begin(3.0)
    assert sum(each.count for each in counts.step_s.values()) == counts.gap_s.count == 0
    assert counts.ended[EndReason.FAILED] == 1


def test_a_gap_is_between_two_steps_and_no_wait() -> None:
    counts, step = StepCounts(), Outcome([1], [7])
    counts.begin(0.0)
    counts.step(step, 10, BLOCKS, 1.0)
    counts.begin(1.5)
    counts.step(step, 10, BLOCKS, 2.0)
    # It begins only when it is begun again.
    counts.begin(2.25)
    counts.begin(3.0)
    counts.step(step, 10, BLOCKS, 4.0)
    counts.begin_wait(5.0, starves=True)
    counts.end_wait(6.0)
    counts.begin(7.0)
    assert (counts.gap_s.count, counts.gap_s.total) == (2, 0.75)
    assert counts.waits == Waits(0.0, 1.0)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10), st.booleans()), max_size=20), st.data())
def test_whoever_looks_sees_waits_grow(waits: list[tuple[float, float, bool]], data: st.DataObject) -> None:
    counts, now, idle, starved = StepCounts(), 0.0, 0.0, 0.0
    seen = Waits()
    for before, took, starves in waits:
        now += before
        counts.begin_wait(now, starves=starves)
        looked_at = now + data.draw(st.floats(-1, 1)) * took
        look = counts.waits.until(looked_at)
        assert (look.idle_s, look.starved_s) >= (seen.idle_s, seen.starved_s)
        now += took
        counts.end_wait(now)
        idle, starved = idle + took * (not starves), starved + took * starves
        seen = counts.waits
        # Who looked before the end did not see more than there was then.
        assert look.idle_s <= seen.idle_s + 1e-9
        assert look.starved_s <= seen.starved_s + 1e-9
    assert counts.waits.idle_s == pytest.approx(idle)
    assert counts.waits.starved_s == pytest.approx(starved)
