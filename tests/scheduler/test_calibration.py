"""What is learned of forecasts, against lists that are sorted anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import calibration
from scheduler.calibration import (
    FEW_RATIOS,
    MAX_ERRORS,
    MAX_RATIOS,
    MEMORY_SECONDS,
    PRIOR,
    SPACING_SECONDS,
    ForecastError,
    ForecastErrors,
    Ratios,
)

ratios_at = st.lists(st.tuples(st.floats(0.01, 100.0), st.floats(0.0, 20.0)), max_size=60)


@given(learned=ratios_at, asked=st.floats(0.0, 200.0), share=st.floats(0.0, 1.0))
def test_shares_and_quantiles_are_those_of_what_is_remembered(
    learned: list[tuple[float, float]], asked: float, share: float
) -> None:
    ratios, kept, now = Ratios(), list[tuple[float, float]](), 0.0
    for ratio, later in learned:
        now += later
        ratios.add(ratio, now)
        if not kept or now >= kept[-1][0] + SPACING_SECONDS:
            kept = [*kept, (now, ratio)][-MAX_RATIOS:]
        ratios.fade(now)
        while len(kept) > FEW_RATIOS and kept[0][0] < now - MEMORY_SECONDS:
            del kept[0]
    known = sorted([*PRIOR, *(ratio for _, ratio in kept)])
    assert ratios.share_within(asked) == sum(each <= asked for each in known) / len(known)
    below = sum(each < ratios.quantile(share) - 1e-9 for each in known)
    assert below <= share * (len(known) - 1) + 1
    assert known[0] <= ratios.quantile(share) <= known[-1]


def test_at_first_forecasts_are_believed_and_late_ones_thought_possible() -> None:
    ratios = Ratios()
    assert ratios.quantile(0.5) == 1.0
    assert ratios.share_within(1.0) == 0.6
    assert ratios.share_within(2.0) == 1.0


def test_what_is_old_is_forgotten_but_for_the_last_few() -> None:
    ratios = Ratios()
    for index in range(40):
        ratios.add(5.0, float(index))
    ratios.fade(39.0 + MEMORY_SECONDS)
    assert ratios.share_within(4.9) == len(PRIOR) / (len(PRIOR) + FEW_RATIOS)
    # Each that is new takes the place of one.
    for index in range(FEW_RATIOS):
        ratios.add(1.0, 100.0 + index)
        ratios.fade(100.0 + index)
    assert ratios.share_within(4.9) == 1.0


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "MAX_RATIOS", 3)
    ratios = Ratios()
    for index, ratio in enumerate((9.0, 2.0, 2.0, 2.0)):
        ratios.add(ratio, float(index))
    assert ratios.share_within(2.0) == 1.0


def test_of_those_that_come_together_one_counts() -> None:
    """They err alike."""
    ratios = Ratios()
    for second in (0.0, 1.0):
        for index in range(5):
            ratios.add(3.0 + index, second + index * SPACING_SECONDS / 10)
    assert ratios.share_within(2.9) == len(PRIOR) / (len(PRIOR) + 2)
    assert ratios.share_within(3.0) == 1.0


def test_errors_are_parts_of_the_actual_time() -> None:
    errors = ForecastErrors()
    assert errors.view() is None
    for forecast_s, actual_s in ((1.5, 1.0), (1.0, 1.0), (0.9, 1.0)):
        errors.add(forecast_s, actual_s)
    view = errors.view()
    assert view is not None
    assert view == ForecastError(3, pytest.approx(0.1), 0.0)
    for _ in range(MAX_ERRORS):
        errors.add(0.5, 1.0)
    assert errors.view() == ForecastError(MAX_ERRORS, 0.5, -0.5)
