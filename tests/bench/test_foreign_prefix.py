"""The p-value of two samples: small if they were drawn differently, anything if alike."""

from __future__ import annotations

import random

from bench.foreign_prefix import p_value


def p_of(shift: float, seed: int) -> float:
    rng = random.Random(seed)
    these, those = ([rng.gauss(100.0 + by, 20.0) for _ in range(40)] for by in (0.0, shift))
    # One late answer says nothing.
    these[0] += 10_000
    return p_value(these, those, 400, rng)


def test_samples_that_are_alike_have_any_p() -> None:
    found = sorted(p_of(0.0, seed) for seed in range(40))
    assert found[0] < 0.2 < 0.4 < found[20] < 0.7 < found[-1]


def test_samples_that_are_not_have_a_small_one() -> None:
    assert max(p_of(40.0, seed) for seed in range(10)) < 0.01
    assert p_value([1.0], [2.0], 100, random.Random(1)) > 0.9
