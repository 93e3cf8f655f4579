"""How fast a queue moves, and when those who were refused may come again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.start_pace import SPREAD_SECONDS, StartPace
from tercet.retry import LONGEST_RETRY_SECONDS, SHORTEST_RETRY_SECONDS, UNKNOWN_RETRY_SECONDS


def moving(between: float, now: float) -> StartPace:
    """A queue in which one started every `between` seconds, the last one now."""
    pace = StartPace()
    for back in range(4, -1, -1):
        pace.note(1, True, now - back * between)
    return pace


def test_a_queue_of_which_nothing_is_known() -> None:
    assert StartPace().seconds_for(5, 100.0) == UNKNOWN_RETRY_SECONDS


def test_a_queue_in_which_nothing_has_started_yet() -> None:
    pace = StartPace()
    pace.note_first(100.0)
    assert [pace.seconds_for(1, 100.0 + after) for after in (0.0, 30.0, 90.0)] == [1.0, 30.0, LONGEST_RETRY_SECONDS]
    assert pace.seconds_for(3, 110.0) == 30.0
    # The first one of several has started, and since then nothing.
    pace = StartPace()
    pace.note(1, True, 200.0)
    assert pace.seconds_for(1, 230.0) == 30.0


def test_a_queue_that_was_left_stands_no_longer() -> None:
    pace = moving(2.0, 100.0)
    assert pace.seconds_for(2, 100.0) == 4.0
    assert pace.seconds_for(2, 110.0) == 20.0
    # All who waited have gone without a start.
    pace.note_first(150.0)
    assert pace.seconds_for(2, 150.0) == 4.0
    pace.note(1, False, 151.0)
    assert pace.seconds_for(1, 190.0) == 2.0


def test_who_was_refused_comes_behind_the_one_before() -> None:
    pace = moving(0.5, 100.0)
    assert [pace.retry_after(1.0, 100.0) for _ in range(4)] == [1.0, 1.5, 2.0, 2.5]
    # Who comes later has less to wait for the same place; who must wait for longer does.
    assert pace.retry_after(1.0, 101.0) == pytest.approx(2.0)
    assert pace.retry_after(5.0, 101.0) == 5.0
    # Once all of these have come, nobody is ahead.
    assert pace.retry_after(1.0, 200.0) == 1.0


@given(
    st.floats(0.001, 100.0),
    st.lists(
        st.tuples(st.floats(0.0, 5.0), st.floats(SHORTEST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)),
        min_size=1,
        max_size=50,
    ),
)
def test_nobody_comes_too_soon_or_never(between: float, refused: list[tuple[float, float]]) -> None:
    now, pace = 1000.0, moving(between, 1000.0)
    for later, soonest in refused:
        now += later
        told = pace.retry_after(soonest, now)
        assert soonest - 1e-6 <= told <= min(soonest + SPREAD_SECONDS, LONGEST_RETRY_SECONDS) + 1e-6


def test_a_thousand_refusals_are_spread_evenly() -> None:
    pace = moving(0.1, 0.0)
    told = [pace.retry_after(2.0, 0.0) for _ in range(1000)]
    by_second = [sum(second <= each - 2.0 < second + 1 for each in told) for second in range(11)]
    assert sum(by_second) == 1000
    assert max(by_second[:10]) <= 1.25 * min(by_second[:10])
