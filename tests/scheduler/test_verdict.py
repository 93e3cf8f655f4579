"""Who is refused for a forecast, and what they are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.calibration import SPACING_SECONDS, Ratios
from scheduler.outlook import FirstToken, Regime
from scheduler.promise import needed_chance
from scheduler.traffic_class import CLASSES, Target
from scheduler.verdict import misses_deadline, misses_target
from tercet.retry import LONGEST_RETRY_SECONDS, SHORTEST_RETRY_SECONDS

# Misses to spare: as many as an account holds.
MUCH = 100.0
CHAT = replace(CLASSES["interactive"], ttft=Target(1.0, 90.0))
BATCH = CLASSES["batch"]


def expected(seconds: float, regime: Regime = Regime.PREFILL, alone_s: float = 0.1) -> FirstToken:
    return FirstToken(regime, 0.05, seconds - 0.05 - 0.1, 0.1, alone_s)


def known(*ratios: float) -> Ratios:
    """So many of each that what was believed before counts for nothing."""
    found = Ratios()
    for index in range(240):
        found.add(ratios[index % len(ratios)], index * SPACING_SECONDS)
    return found


EXACT = known(1.0)


def test_who_will_be_in_time_is_let_in_and_who_will_not_is_not() -> None:
    assert misses_target(expected(0.95), EXACT, CHAT, 0.0) is None
    refusal = misses_target(expected(1.5), EXACT, CHAT, MUCH)
    assert refusal is not None
    assert refusal.metadata["traffic_class"] == "interactive"
    assert refusal.metadata["forecast_ms"] == "1500"
    assert refusal.metadata["target_ms"] == "1000"
    assert refusal.retry_after_s == pytest.approx(0.5)


def test_where_room_is_made_what_helps_is_a_place_that_is_free() -> None:
    made = replace(expected(0.6, Regime.PLACE), place_s=7.0)
    refusal = misses_target(made, known(2.0), CHAT, 0.0)
    assert refusal is not None
    assert refusal.retry_after_s == 7.0


def test_forecasts_that_come_true_late_refuse_sooner_and_those_that_are_too_high_later() -> None:
    assert misses_target(expected(0.6), known(2.0), CHAT, 0.0) is not None
    assert misses_target(expected(1.5), known(0.5), CHAT, 0.0) is None


def test_an_unsure_one_is_let_in_while_there_are_misses_to_spare() -> None:
    three_of_four = known(1.0, 1.0, 1.0, 2.0)
    assert misses_target(expected(0.9), three_of_four, CHAT, 1.0) is None
    assert misses_target(expected(0.9), three_of_four, CHAT, -4.0) is not None
    one_of_eight = known(1.0, *[2.0] * 7)
    assert misses_target(expected(0.9), one_of_eight, CHAT, MUCH) is not None


def test_a_refusal_says_what_it_was_decided_on() -> None:
    refusal = misses_target(expected(0.9), known(1.0, 1.0, 1.0, 2.0), CHAT, -8.0)
    assert refusal is not None
    # In the median it would have been in time.
    assert refusal.metadata["forecast_ms"] == "900"
    chance, needed = (float(refusal.metadata[key]) for key in ("chance", "needed_chance"))
    assert chance == pytest.approx(0.75, abs=0.01)
    assert needed == pytest.approx(needed_chance(Target(1.0, 90.0), -8.0), abs=0.001)
    assert "in 0.9 s, within 1 s with a chance of 7" in refusal.message
    assert f"where {needed:.1%} is needed; class interactive promises 1 s" in refusal.message


def test_where_nothing_is_ahead_or_promised_nobody_is_refused() -> None:
    assert misses_target(expected(9.0, Regime.IDLE), EXACT, CHAT, 0.0) is None
    assert misses_target(expected(900.0), EXACT, BATCH, 0.0) is None
    assert misses_deadline(expected(9.0, Regime.IDLE), EXACT, 0.1) is None


def test_what_is_late_even_alone_is_refused_for_waiting_only() -> None:
    assert misses_target(expected(3.0, alone_s=2.0), EXACT, CHAT, 0.0) is None
    assert misses_target(expected(4.5, alone_s=2.0), EXACT, CHAT, 0.0) is not None
    assert misses_target(expected(1.5, alone_s=0.9), EXACT, CHAT, 0.0) is not None


def test_the_time_to_retry_has_bounds() -> None:
    soon = misses_target(expected(1.001), EXACT, CHAT, 0.0)
    late = misses_target(expected(3000.0), EXACT, CHAT, 0.0)
    assert soon is not None
    assert late is not None
    assert (soon.retry_after_s, late.retry_after_s) == (SHORTEST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)


def test_a_deadline_that_few_would_meet_is_refused_whatever_the_class() -> None:
    assert misses_deadline(expected(2.0), EXACT, None) is None
    assert misses_deadline(expected(2.0), EXACT, 2.1) is None
    refusal = misses_deadline(expected(2.0), EXACT, 1.5)
    assert refusal is not None
    assert refusal.metadata == {"forecast_ms": "2000", "deadline_ms": "1500", "chance": "0.004"}
    assert "in 1.5 s with a chance of 0.4%" in refusal.message
    # As long as one in twenty would meet it, it is tried.
    assert misses_deadline(expected(2.0), known(*[1.0] * 9, 0.5), 1.5) is None
