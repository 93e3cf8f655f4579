"""Shares of time, and turns."""

from __future__ import annotations

import pytest

from bench.figures import overlap
from bench.plan_parts import in_turns


def test_only_what_lies_in_the_window_counts() -> None:
    spans = [(0.0, 2.0), (3.0, 4.0), (9.0, 12.0), (20.0, 30.0)]
    assert overlap(spans, 1.0, 10.0) == pytest.approx(1.0 + 1.0 + 1.0)
    assert overlap(spans, 12.0, 20.0) == 0.0


def test_turns_are_turned_round() -> None:
    assert in_turns("ab", 3) == ["a", "b", "b", "a", "a", "b"]
