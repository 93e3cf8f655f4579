"""When whoever was refused is told to ask again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.retry import LONGEST_RETRY_SECONDS, SHORTEST_RETRY_SECONDS, Spread


def test_one_comes_behind_the_other_and_then_it_starts_over() -> None:
    spread = Spread()
    assert [spread.retry_after(1.0, 2.0, 5.0, 100.0) for _ in range(4)] == [1.0, 3.0, 5.0, 1.0]
    # Once all of these have come, nobody is ahead.
    assert spread.retry_after(1.0, 2.0, 5.0, 200.0) == pytest.approx(1.0)


@given(
    st.lists(
        st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 200.0), st.floats(0.0, 100.0), st.floats(0.0, 100.0)),
        min_size=1,
        max_size=30,
    )
)
def test_nobody_is_told_less_than_it_takes_nor_more_than_clients_wait(
    asks: list[tuple[float, float, float, float]],
) -> None:
    spread, now = Spread(), 0.0
    for after_s, soonest_s, each_s, over_s in asks:
        now += after_s
        told = spread.retry_after(soonest_s, each_s, over_s, now)
        assert SHORTEST_RETRY_SECONDS <= told <= LONGEST_RETRY_SECONDS
        assert told >= min(soonest_s, LONGEST_RETRY_SECONDS) - 1e-9
        assert told <= max(soonest_s + over_s, SHORTEST_RETRY_SECONDS) + 1e-9
