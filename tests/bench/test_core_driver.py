"""A core with simulated workers and no processes serves what it is given, and the books balance."""

from __future__ import annotations

from bench.core_driver import CoreDriver
from bench.scheduler_cost import big_worker, memory, round_cost


def test_all_requests_end_and_plans_are_timed() -> None:
    driver = CoreDriver([big_worker(index, 4) for index in range(2)], plan_log_rounds=50, num_steps=8)
    driver.submit([(20, 3 + index % 7) for index in range(40)])
    assert driver.outstanding == 40
    for _ in range(400):
        if not driver.outstanding:
            break
        driver.step()
        assert driver.core.check() == []
    assert driver.ended == 40
    assert driver.core.idle
    assert driver.times.starting
    assert driver.times.steady


def test_a_round_is_timed_as_a_whole_and_the_recorder_is_in_it() -> None:
    figures = round_cost(1, 0, running=8, waiting=4, rounds=400)
    assert {
        "steady_apply_p50_ms",
        "newcomer_plan_p99_ms",
        "newcomer_record_max_ms",
        "checkpoint_p50_ms",
    } <= figures.keys()
    assert 0 < figures["steady_record_p50_ms"] < figures["steady_whole_p50_ms"] <= figures["steady_whole_max_ms"]
    assert figures["steady_plan_max_ms"] <= figures["steady_whole_max_ms"]
    assert figures["newcomer_rounds"] > 0


def test_memory_is_looked_at_ten_times() -> None:
    rows = list(memory(2000))
    assert len(rows) == 10
    assert [row["sequences"] >= 200 * (1 + index) for index, row in enumerate(rows)] == [True] * 10
