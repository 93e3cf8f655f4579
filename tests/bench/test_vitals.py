"""Whether a process grows, told from samples."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from bench.vitals import LEAST_SAMPLES, Vitals, read_vitals, trend

MIB = 1 << 20


def _samples(rss: Callable[[int], float], files: Callable[[int], int] = lambda _: 40) -> list[Vitals]:
    return [Vitals(3.0 * index, 1, int(rss(index)), files(index), 9) for index in range(100)]


def test_what_fills_its_caches_first_and_has_peaks_is_flat() -> None:
    rng = random.Random(1)

    def rss(index: int) -> float:
        return (300 if index > 20 else 100 + 10 * index) * MIB + (rng.random() < 0.1) * 80 * MIB

    found = trend(_samples(rss))
    assert found is not None
    assert found.flat
    assert abs(found.rss_growth) < MIB


@pytest.mark.parametrize(
    "samples",
    [
        _samples(lambda index: (100 + 0.2 * index) * MIB),
        _samples(lambda index: 100 * MIB, lambda index: 40 + index // 5),
    ],
)
def test_what_grows_all_the_time_leaks(samples: list[Vitals]) -> None:
    found = trend(samples)
    assert found is not None
    assert not found.flat


def test_a_few_samples_say_nothing() -> None:
    assert trend(_samples(lambda _: MIB)[:LEAST_SAMPLES]) is None


def test_this_process_has_something_and_one_that_is_gone_has_nothing() -> None:
    mine = read_vitals(os.getpid(), 1.0)
    assert mine is not None
    assert min(mine.rss, mine.files, mine.threads) > 0
    assert read_vitals(2**22 + 1, 1.0) is None
