"""Step times are learned from what workers report."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.step_time import CAUTIOUS_TOKENS, MIN_STEPS, StepTimes

BASE, PER_TOKEN, PER_CONTEXT = 2e-3, 5e-5, 1e-7


def truth(tokens: int, context: int) -> float:
    return BASE + PER_TOKEN * tokens + PER_CONTEXT * context


def taught(step: Callable[[int, random.Random], tuple[int, int]], steps: int = 500, noise: float = 0.05) -> StepTimes:
    """Times after `steps` noisy reports; the first step took seconds, and one in a hundred is twenty times too slow."""
    times, rng = StepTimes(), random.Random(1)
    times.observe(1, 10, 3.0)
    for index in range(steps):
        tokens, context = step(index, rng)
        times.observe(tokens, context, truth(tokens, context) * (1 + rng.gauss(0, noise)) * rng.choice([1] * 99 + [20]))
    return times


def predicted(times: StepTimes, tokens: int, context: int) -> float:
    seconds = times.predict(tokens, context)
    assert seconds is not None
    return seconds


def test_nothing_is_predicted_from_a_few_steps() -> None:
    times = StepTimes()
    for _ in range(MIN_STEPS - 1):
        times.observe(8, 100, 0.002)
    assert times.predict(8, 100) is None
    assert times.tokens_within(0.05, 100) is None
    assert times.seconds_of(100) is None
    times.observe(8, 100, 0.002)
    assert predicted(times, 8, 100) == pytest.approx(0.002, rel=0.02)


def test_varied_steps_teach_all_three_coefficients() -> None:
    times = taught(lambda _, rng: (rng.choice([8, 8, 8, 64, 128, 512]), rng.randrange(20_000)))
    for tokens, context in ((8, 1000), (64, 10_000), (512, 20_000), (900, 5_000)):
        assert predicted(times, tokens, context) == pytest.approx(truth(tokens, context), rel=0.15)
    assert times.seconds_of(1000) == pytest.approx(1000 * PER_TOKEN, rel=0.15)


def test_what_prefill_taught_outlasts_a_long_decode() -> None:
    times = taught(lambda index, _: (512 if index < 12 else 8, 1000 + 8 * index), steps=3000)
    assert predicted(times, 512, 9000) == pytest.approx(truth(512, 9000), rel=0.3)


def test_steps_that_are_all_alike_are_predicted_though_their_causes_are_unknown() -> None:
    times = taught(lambda _index, _rng: (8, 1000))
    assert predicted(times, 8, 1000) == pytest.approx(truth(8, 1000), rel=0.1)


@pytest.mark.parametrize("factor", [0.2, 2.0, 8.0])
def test_a_worker_that_changes_its_pace_is_followed(factor: float) -> None:
    times = taught(lambda _index, rng: (rng.choice([8, 64]), rng.randrange(10_000)))
    rng = random.Random(2)
    for _ in range(500):
        tokens, context = rng.choice([8, 64]), rng.randrange(10_000)
        times.observe(tokens, context, truth(tokens, context) * factor)
    assert predicted(times, 64, 5000) == pytest.approx(truth(64, 5000) * factor, rel=0.15)


def test_tokens_within_a_time_are_the_inverse_but_no_wild_guess() -> None:
    times = taught(lambda _, rng: (rng.choice([8, 64, 512]), rng.randrange(10_000)), noise=0.0)
    tokens = times.tokens_within(0.02, 5000)
    assert tokens is not None
    assert predicted(times, tokens, 5000) <= 0.02 < predicted(times, tokens + 1, 5000)
    # Twice the largest step seen.
    assert times.tokens_within(10.0, 5000) == 1024
    # Or that will have been seen.
    assert times.tokens_within(10.0, 5000, 700) == 1400
    assert times.tokens_within(10.0, 5000, 100) == 1024
    assert times.tokens_within(0.0001, 5000) == 0


def test_a_mesh_that_begins_under_load_learns_from_each_of_its_first_steps() -> None:
    """Steps and their context grow together at first, so that it is open which of both takes the time."""
    times, context, rng = StepTimes(), 0, random.Random(3)
    for index in range(40):
        tokens = min(128 * 2 ** max(0, index - MIN_STEPS), 1800)
        context += tokens // 2
        times.observe(tokens, context, truth(tokens, context) * (1 + rng.gauss(0, 0.02)))
        if index > 2 * MIN_STEPS:
            assert predicted(times, 1800, context + 900) == pytest.approx(truth(1800, context + 900), rel=0.15)


def test_a_worker_that_tells_no_times_teaches_nothing() -> None:
    times = StepTimes()
    for _ in range(100):
        times.observe(8, 100, 0.0)
    assert times.predict(8, 100) is None


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 10**5), st.integers(0, 10**7), st.floats(0, 1e4)), max_size=80))
def test_whatever_is_reported_predictions_are_numbers_and_not_negative(reports: list[tuple[int, int, float]]) -> None:
    times = StepTimes()
    for tokens, context, seconds in reports:
        times.observe(tokens, context, seconds)
    for tokens, context in ((0, 0), (1, 1), (10**5, 10**7)):
        prediction = times.predict(tokens, context)
        assert prediction is None or 0 <= prediction < float("inf")
        within = times.tokens_within(0.05, context)
        assert within is None or 0 <= within <= max(CAUTIOUS_TOKENS, 2 * times.most_tokens)
