"""The stages of a request add up to its time, wherever it ends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.stages import Stage, StageClock, TokenTimes, stage_times
from tercet.ledger.row import STAGES, StageTimes

_pause = st.floats(0, 100)


def clock_at(moments: list[float]) -> StageClock:
    """A request that came to as many stages as there are moments."""
    arrived_at, *others = moments
    left = iter(others)
    clock = StageClock(lambda: next(left), arrived_at)
    for stage in list(Stage)[1 : len(moments)]:
        clock.begin(stage)
    return clock


def test_one_that_was_served() -> None:
    clock = clock_at([10.0, 10.1, 10.4, 10.5, 11.0])
    tokens = TokenTimes(first_at=14.0, last_at=20.0, paused_s=2.0, complete=True, behind=False)
    times = stage_times(clock, 21.0, 2.5, tokens)
    assert dict(times.items()) == pytest.approx(
        {
            "checks": 0.1, "tokenize": 0.3, "prepare": 0.1, "admission": 0.5, "waiting": 2.5, "prefill": 0.5,
            "decode": 4.0, "paused": 2.0, "stream": 1.0,
        }
    )  # fmt: skip
    assert tuple(name for name, _ in times.items()) == STAGES


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        # Its worker, its scheduler, or its client is gone while tokens come.
        (TokenTimes(12.0, 13.0, 0.0, complete=False, behind=False), (3.0, 0.0, 0.0)),
        # Its client does not read.
        (TokenTimes(12.0, 13.0, 0.0, complete=False, behind=True), (1.0, 2.0, 0.0)),
        # All is there, and the client reads slowly.
        (TokenTimes(12.0, 13.0, 0.5, complete=True, behind=True), (0.5, 0.5, 2.0)),
    ],
)
def test_where_the_time_behind_the_last_token_goes(tokens: TokenTimes, expected: tuple[float, ...]) -> None:
    times = stage_times(clock_at([10.0] * 5), 15.0, 1.0, tokens)
    assert (times.decode_s, times.paused_s, times.stream_s) == pytest.approx(expected)


def test_what_it_did_not_come_to_is_empty() -> None:
    times = stage_times(clock_at([10.0, 11.0]), 13.0, None, None)
    assert times == StageTimes(checks_s=1.0, tokenize_s=2.0)


def test_a_wait_of_which_the_scheduler_says_nothing_was_in_its_queue() -> None:
    times = stage_times(clock_at([10.0] * 5), 13.0, None, None)
    assert (times.waiting_s, times.prefill_s, times.decode_s) == (3.0, 0.0, None)


@settings(max_examples=150)
@given(
    st.lists(_pause, min_size=1, max_size=5),
    st.none() | _pause,
    st.none() | st.tuples(_pause, _pause, _pause, st.booleans(), st.booleans()),
    _pause,
)
def test_they_add_up(
    pauses: list[float], queue_s: float | None, told: tuple[float, float, float, bool, bool] | None, after_s: float
) -> None:
    moments = [1000.0]
    for pause in pauses[1:]:
        moments.append(moments[-1] + pause)
    ended_at = moments[-1]
    tokens = None
    if told is not None and len(moments) == 5:
        first_at = moments[-1] + told[0]
        tokens = TokenTimes(first_at, first_at + told[1], told[2], complete=told[3], behind=told[4])
        ended_at = tokens.last_at
    # A token may come behind the end, when nobody wants it any more.
    ended_at += after_s - 50.0 if tokens is not None else after_s
    ended_at = max(ended_at, moments[-1])
    times = stage_times(clock_at(moments), ended_at, queue_s, tokens)
    assert sum(seconds for _, seconds in times.items()) == pytest.approx(ended_at - moments[0], abs=1e-6)
    assert all(seconds >= 0 for _, seconds in times.items())
