"""Slow, late and hung, told apart by how long they are silent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.pool import Pool
from scheduler.progress import (
    HUNG_SECONDS,
    HUNG_STEPS,
    HUNG_TIMES,
    HUNG_TIMES_ALONE,
    LATE_SECONDS,
    LATE_SECONDS_UNKNOWN,
    LATE_STEPS,
    Foreseen,
    Progress,
    Silence,
    progress_of,
)
from scheduler.simulator.small import worker_info
from scheduler.worker import Worker

MOVING, LATE, HUNG = Progress.MOVING, Progress.LATE, Progress.HUNG
BY_ITSELF, BY_OTHERS, BY_NOBODY = Foreseen.BY_ITSELF, Foreseen.BY_OTHERS, Foreseen.BY_NOBODY


def silent(seconds: float, step_s: float | None = 0.02, foreseen: Foreseen = BY_ITSELF, swap_s: float = 0.0) -> Silence:
    return Silence(seconds, step_s, foreseen, swap_s)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (silent(0.0), MOVING),
        (silent(LATE_SECONDS), MOVING),
        (silent(LATE_SECONDS + 0.1), LATE),
        (silent(HUNG_SECONDS), LATE),
        (silent(HUNG_SECONDS + 0.1), HUNG),
        # A prefill of 7,000 tokens on a CPU.
        (silent(LATE_STEPS * 7.0, step_s=7.0), MOVING),
        (silent(HUNG_STEPS * 7.0, step_s=7.0), LATE),
        (silent(HUNG_STEPS * 7.0 + 0.1, step_s=7.0), HUNG),
        # A worker of which nothing is known.
        (silent(LATE_SECONDS_UNKNOWN, step_s=None, foreseen=BY_NOBODY), MOVING),
        (silent(HUNG_TIMES[BY_NOBODY] * HUNG_SECONDS, step_s=None, foreseen=BY_NOBODY), LATE),
        (silent(HUNG_TIMES[BY_NOBODY] * HUNG_SECONDS + 0.1, step_s=None, foreseen=BY_NOBODY), HUNG),
        # One of a pool in which others are known.
        (silent(HUNG_TIMES[BY_OTHERS] * HUNG_SECONDS, foreseen=BY_OTHERS), LATE),
        (silent(HUNG_TIMES[BY_OTHERS] * HUNG_SECONDS + 0.1, foreseen=BY_OTHERS), HUNG),
        (silent(HUNG_STEPS * 7.0, step_s=7.0, foreseen=BY_OTHERS), LATE),
        # A larger step than any before it.
        (silent(HUNG_TIMES[BY_NOBODY] * HUNG_SECONDS, foreseen=BY_NOBODY), LATE),
        # Blocks have to come from host memory, or to go there.
        (silent(HUNG_SECONDS + 4.0, swap_s=15.0), LATE),
    ],
)
def test_by_what_was_forecast(what: Silence, expected: Progress) -> None:
    assert progress_of(what, HUNG_SECONDS, alone=False) is expected


def test_who_is_alone_is_waited_for_longer() -> None:
    longer = HUNG_TIMES_ALONE * HUNG_SECONDS
    assert progress_of(silent(longer), HUNG_SECONDS, alone=True) is LATE
    assert progress_of(silent(longer + 0.1), HUNG_SECONDS, alone=True) is HUNG


@given(
    silent_s=st.floats(0.0, 1e4),
    longer_s=st.floats(0.0, 1e4),
    step_s=st.none() | st.floats(1e-6, 1e3),
    slower=st.floats(1.0, 100.0),
    foreseen=st.sampled_from(Foreseen),
    swap_s=st.floats(0.0, 100.0),
    hung_s=st.floats(1.0, 600.0),
    alone=st.booleans(),
)
def test_longer_silence_is_no_better_and_a_slower_step_no_worse(
    silent_s: float,
    longer_s: float,
    step_s: float | None,
    slower: float,
    foreseen: Foreseen,
    swap_s: float,
    hung_s: float,
    alone: bool,
) -> None:
    order = [MOVING, LATE, HUNG]

    def rank(each: Silence, *, alone: bool = alone) -> int:
        return order.index(progress_of(each, hung_s, alone=alone))

    base = Silence(silent_s, step_s, BY_NOBODY if step_s is None else foreseen, swap_s)
    assert rank(replace(base, seconds=silent_s + longer_s)) >= rank(base)
    assert rank(base, alone=True) <= rank(base, alone=False)
    by_knowledge = [rank(replace(base, foreseen=each)) for each in (BY_NOBODY, BY_OTHERS, BY_ITSELF)]
    assert by_knowledge == sorted(by_knowledge)
    if step_s is not None:
        assert rank(replace(base, step_s=slower * step_s)) <= rank(base)
        # However slow: what has only taken what was forecast is no reason.
        if silent_s <= step_s:
            assert rank(base) == 0


def test_a_worker_without_work_is_not_silent() -> None:
    assert Worker(1, "host:1", worker_info()).silence(1e6).seconds == 0.0


def test_a_step_is_foreseen_when_one_of_half_its_size_has_been_seen() -> None:
    worker = Worker(1, "host:1", worker_info())
    worker.window.send(1, {1: 32}, revoke=False)
    assert worker.silence(1.0) == silent(1.0, None, BY_NOBODY)
    # The first one says as much as that.
    worker.step_times.observe(16, 0, 0.1)
    assert worker.silence(1.0) == silent(1.0, 0.1, BY_ITSELF)
    worker.window.send(1, {2: 33}, revoke=False)
    assert worker.silence(1.0) == silent(1.0, 0.1, BY_NOBODY)


def test_others_of_its_kind_say_what_its_first_steps_take() -> None:
    pool = Pool("tiny", "r1")
    new, known, slow, other, small = (
        pool.workers.setdefault(link, Worker(link, f"host:{link}", worker_info(device=device)))
        for link, device in enumerate(("cuda:0", "cuda:1", "cuda:0", "cpu", "cuda:0"), 1)
    )
    new.window.send(1, {1: 32}, revoke=False)
    for worker, num_tokens, seconds in ((other, 64, 9.0), (small, 15, 8.0)):
        worker.step_times.observe(num_tokens, 0, seconds)
    # A CPU says nothing of a GPU, nor a short step of a long one.
    assert pool.silence_of(new, 2.0) == silent(2.0, None, BY_NOBODY)
    for worker, seconds in ((known, 0.1), (slow, 0.3)):
        worker.step_times.observe(64, 0, seconds)
    assert pool.silence_of(new, 2.0) == silent(2.0, 0.3, BY_OTHERS)
    # Its own go before theirs, however much slower they are.
    new.step_times.observe(16, 0, 1.5)
    assert pool.silence_of(new, 2.0) == silent(2.0, 1.5, BY_ITSELF)
    # And where they are too small, they are not forgotten.
    new.window.send(1, {1: 50}, revoke=False)
    assert pool.silence_of(new, 2.0) == silent(2.0, 1.5, BY_OTHERS)
