"""A mean that follows what changes."""

from __future__ import annotations

from statistics import fmean

import pytest

from tercet.mean import WINDOW, Mean


def test_few_values_count_alike_and_of_many_the_last_ones_most() -> None:
    mean, values = Mean(), [float(value % 7) for value in range(WINDOW)]
    for value in values:
        mean.add(value)
    assert mean.value == pytest.approx(fmean(values))
    for _ in range(WINDOW):
        mean.add(100.0)
    # As much of the old as is left when each new one counts for one in so many.
    left = (1 - 1 / WINDOW) ** WINDOW
    assert mean.value == pytest.approx(100.0 * (1 - left) + left * fmean(values))
