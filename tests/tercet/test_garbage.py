"""How often Python's garbage collector looks at everything."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tercet.garbage import SELDOM, USUAL, settle

# More than one full collection of the usual pace.
MANY = 200_000


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_what_is_loaded_is_not_looked_at_again() -> None:
    loaded: list[object] = [[] for _ in range(1000)]
    settle()
    assert gc.get_freeze_count() > len(loaded)
    young = {id(each) for each in gc.get_objects()}
    assert not any(id(each) in young for each in loaded)


@pytest.mark.parametrize(("full_after", "full"), [(USUAL, True), (SELDOM, False)])
def test_who_keeps_many_objects_does_not_stand_still_for_all_of_them(full_after: int, full: bool) -> None:
    # In an interpreter of its own: Python waits with all objects until a quarter as many are new, and here there may be
    # a million.
    program = f"""
import gc
from tercet.garbage import settle
settle({full_after})
before = gc.get_stats()[2]["collections"]
kept = [[] for _ in range({MANY})]
print(gc.get_stats()[2]["collections"] - before)
"""
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert (int(told) > 0) is full


def test_cycles_that_die_young_are_found_whatever_the_pace() -> None:
    settle(SELDOM)
    found = _num_collected()
    for _ in range(20_000):
        cycle: list[object] = []
        cycle.append(cycle)
    assert _num_collected() - found > 15_000


def _num_collected() -> int:
    return sum(int(each["collected"]) for each in gc.get_stats())
