"""Slow, late and hung, told apart by the age of what is owed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.progress import (
    HUNG_SECONDS,
    HUNG_STEPS,
    HUNG_TIMES_ALONE,
    HUNG_TIMES_UNKNOWN,
    LATE_SECONDS,
    LATE_SECONDS_UNKNOWN,
    LATE_STEPS,
    Owed,
    Progress,
    progress_of,
)
from scheduler.simulator.small import worker_info
from scheduler.worker import Worker

MOVING, LATE, HUNG = Progress.MOVING, Progress.LATE, Progress.HUNG


def owed(silent_s: float, step_s: float | None = 0.02, foreseen: bool = True, swap_s: float = 0.0) -> Owed:
    return Owed(silent_s, step_s, foreseen, swap_s)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (owed(0.0), MOVING),
        (owed(LATE_SECONDS), MOVING),
        (owed(LATE_SECONDS + 0.1), LATE),
        (owed(HUNG_SECONDS), LATE),
        (owed(HUNG_SECONDS + 0.1), HUNG),
        # A prefill of 7,000 tokens on a CPU.
        (owed(LATE_STEPS * 7.0, step_s=7.0), MOVING),
        (owed(HUNG_STEPS * 7.0, step_s=7.0), LATE),
        (owed(HUNG_STEPS * 7.0 + 0.1, step_s=7.0), HUNG),
        # A worker of which nothing is known.
        (owed(LATE_SECONDS_UNKNOWN, step_s=None, foreseen=False), MOVING),
        (owed(HUNG_TIMES_UNKNOWN * HUNG_SECONDS, step_s=None, foreseen=False), LATE),
        (owed(HUNG_TIMES_UNKNOWN * HUNG_SECONDS + 0.1, step_s=None, foreseen=False), HUNG),
        # A larger step than any before it.
        (owed(HUNG_TIMES_UNKNOWN * HUNG_SECONDS, foreseen=False), LATE),
        # Blocks have to come from host memory, or to go there.
        (owed(HUNG_SECONDS + 4.0, swap_s=15.0), LATE),
    ],
)
def test_by_what_was_forecast(what: Owed, expected: Progress) -> None:
    assert progress_of(what, HUNG_SECONDS, alone=False) is expected


def test_who_is_alone_is_waited_for_longer() -> None:
    longer = HUNG_TIMES_ALONE * HUNG_SECONDS
    assert progress_of(owed(longer), HUNG_SECONDS, alone=True) is LATE
    assert progress_of(owed(longer + 0.1), HUNG_SECONDS, alone=True) is HUNG


@given(
    silent_s=st.floats(0.0, 1e4),
    longer_s=st.floats(0.0, 1e4),
    step_s=st.none() | st.floats(1e-6, 1e3),
    slower=st.floats(1.0, 100.0),
    foreseen=st.booleans(),
    swap_s=st.floats(0.0, 100.0),
    hung_s=st.floats(1.0, 600.0),
    alone=st.booleans(),
)
def test_longer_silence_is_no_better_and_a_slower_step_no_worse(
    silent_s: float,
    longer_s: float,
    step_s: float | None,
    slower: float,
    foreseen: bool,
    swap_s: float,
    hung_s: float,
    alone: bool,
) -> None:
    order = [MOVING, LATE, HUNG]

    def rank(each: Owed, *, alone: bool = alone) -> int:
        return order.index(progress_of(each, hung_s, alone=alone))

    base = Owed(silent_s, step_s, foreseen and step_s is not None, swap_s)
    assert rank(Owed(silent_s + longer_s, step_s, base.foreseen, swap_s)) >= rank(base)
    assert rank(base, alone=True) <= rank(base, alone=False)
    if step_s is not None:
        assert rank(Owed(silent_s, slower * step_s, base.foreseen, swap_s)) <= rank(base)
        # However slow: what has only taken what was forecast is no reason.
        if silent_s <= step_s:
            assert rank(base) == 0


def test_a_worker_without_work_owes_nothing() -> None:
    assert Worker(1, "host:1", worker_info()).owed(1e6).silent_s == 0.0


def test_a_step_is_foreseen_when_one_of_half_its_size_has_been_seen() -> None:
    worker = Worker(1, "host:1", worker_info())
    for _ in range(8):
        worker.step_times.observe(16, 0, 0.1)
    worker.window.send(1, {1: 32}, revoke=False)
    assert worker.owed(1.0).foreseen
    worker.window.send(1, {2: 33}, revoke=False)
    assert not worker.owed(1.0).foreseen
    assert worker.owed(1.0).step_s is not None
