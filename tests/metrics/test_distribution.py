import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.metrics.distribution import LONG_SECONDS, SHORT_SECONDS, STEPS, Distribution

BOUNDS = (1.0, 2.0, 5.0)
values = st.floats(0, 10, allow_nan=False) | st.sampled_from(BOUNDS)


def _of(numbers):
    made = Distribution(BOUNDS)
    for number in numbers:
        made.add(number)
    return made


@given(st.lists(values))
def test_each_is_counted_below_the_bounds_that_it_does_not_exceed(numbers):
    made = _of(numbers)
    assert made.cumulative() == [*(sum(number <= bound for number in numbers) for bound in BOUNDS), len(numbers)]
    assert made.count == len(numbers)
    assert made.total == pytest.approx(sum(numbers))


@given(st.lists(values), st.lists(values))
def test_two_together_are_as_one_of_both(some, others):
    together, one = _of(some), _of([*some, *others])
    together.merge(_of(others))
    assert together.counts == one.counts
    assert together.total == pytest.approx(one.total)


def test_a_copy_does_not_go_on_counting():
    made = _of([1.5])
    held = made.copy()
    made.add(1.5)
    assert (held.count, held.total, made.count) == (1, 1.5, 2)


@pytest.mark.parametrize("bounds", [LONG_SECONDS, SHORT_SECONDS, STEPS])
def test_bounds_grow_and_are_told_apart_as_text(bounds):
    assert list(bounds) == sorted(set(bounds))
    texts = [f"{bound:g}" for bound in bounds]
    assert [float(text) for text in texts] == list(bounds)
