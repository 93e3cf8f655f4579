"""The process that tells what the machine adds to gaps."""

from __future__ import annotations

import asyncio
import threading

from bench.timer import sleep_gaps, timer_gaps


def test_gaps_are_no_shorter_than_sleeps_on_average() -> None:
    stopped = threading.Event()
    threading.Timer(0.2, stopped.set).start()
    gaps = sleep_gaps(0.01, stopped)
    assert gaps
    # Each sleep is due a hundredth after the one before was.
    assert sum(gaps) >= 0.0099 * len(gaps)


def test_a_process_of_its_own_ends_with_the_scope() -> None:
    async def run() -> list[float]:
        async with timer_gaps(5.0) as gaps:
            await asyncio.sleep(0.1)
            assert not gaps
        return gaps

    assert sum(asyncio.run(run())) >= 0.05
