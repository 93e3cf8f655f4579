import random

import pytest

from bench.observability import OFF, SERVICES, Block, calls, compare, report, ways


def test_a_change_is_found_and_noise_is_not():
    rng = random.Random(3)
    base = [rng.gauss(100, 2) for _ in range(40)]
    slower = [value * rng.gauss(0.9, 0.01) for value in base]
    found = compare(slower, base, random.Random(1))
    assert found.low <= found.percent <= found.high < -8
    alike = compare([value * rng.gauss(1.0, 0.01) for value in base], base, random.Random(1))
    assert alike.low < 0.5
    assert alike.high > -0.5


def test_blocks_are_compared_with_those_of_their_round():
    blocks = [
        Block(way, number, 1000 * number, 1.0, dict.fromkeys(SERVICES, 0.01 * number * (2 if way != OFF else 1)))
        for number in (2, 1, 3)
        for way in (OFF, "metrics")
    ]
    ((way, figures),) = report(blocks, random.Random(1)).items()
    assert way == "metrics"
    assert figures["throughput"].percent == pytest.approx(0)
    for name in SERVICES:
        assert (figures[f"{name} cpu"].low, figures[f"{name} cpu"].high) == pytest.approx((100, 100))


def test_what_is_always_counted_is_little():
    took = calls()
    assert all(us > 0 for us in took.values())


def test_all_at_once_is_all_there_is():
    found = ways(4317)
    each = [name for name in found if name not in (OFF, "all")]
    assert set(found["all"]) == {key for name in each for key in found[name]}
