"""What the loop of captured steps costs, on steps that do nothing but take their time and commit.

    python -m bench.step_loop [--rows R]

By length of a step and by lead (how long before its predecessor's end a step is launched): what a step takes beyond
the same graph replayed back to back, which is what the GPU waits; how late a record is read; what share of a CPU the
process takes; and for stops at any moment how long until the run is over, and how many cost a step more.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from dataclasses import dataclass
from statistics import median

import torch

from tercet.load.figures import gaps, percentile
from worker import _kernels
from worker.ops.commit import LIVE, NUM_STOP_IDS, CommitRows, commit
from worker.ops.sampler import PARAMS_BYTES

STEPS_US = (200, 400, 1000, 4000)
LEADS_US = (50, 100, 150, 250)
BLOCK_SIZE, TABLE_WIDTH = 64, 128
SECONDS = 0.4  # of a measurement


def endless_rows(num_rows: int) -> CommitRows:
    """Rows that nothing ends."""

    def full(*shape: int, value: int = 0, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.full(shape, value, dtype=dtype, device="cuda")

    return CommitRows(
        token_ids=full(num_rows, dtype=torch.int64),
        positions=full(num_rows, dtype=torch.int64),
        slots=full(num_rows, dtype=torch.int64),
        context_lens=full(num_rows, value=1),
        block_tables=full(num_rows, TABLE_WIDTH),
        params=full(num_rows, PARAMS_BYTES, dtype=torch.uint8),
        status=full(num_rows, value=LIVE),
        remaining=full(num_rows, value=1 << 30),
        stop_ids=full(num_rows, NUM_STOP_IDS, value=-1),
    )


class IdleSteps:
    """A graph that takes so many cycles and commits into a loop."""

    def __init__(self, loop: _kernels.StepLoop, num_rows: int, cycles: int) -> None:
        self.loop = loop
        rows, sampled = endless_rows(num_rows), torch.zeros(num_rows, dtype=torch.int64, device="cuda")
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(self.graph, stream=self.stream):
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
            commit(sampled, rows, BLOCK_SIZE, loop)
        self.step = _kernels.StepGraph(self.graph.raw_cuda_graph(), self.stream.cuda_stream)
        self._kept = rows, sampled

    def run(self, num_steps: int) -> None:
        """Begins a run."""
        self.loop.run(self.step, num_steps, self.stream.cuda_stream, True)

    def back_to_back_us(self, num_steps: int) -> float:
        """Microseconds a step of replays that all wait in the stream. The loop is of no use afterwards."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self.stream):
            self.graph.replay()
            start.record()
            for _ in range(num_steps):
                self.graph.replay()
            end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / num_steps


@dataclass(frozen=True, slots=True)
class Taken:
    """A run's steps as they came, in microseconds."""

    lasted: list[float]  # from the end of the step before, by the GPU's clock
    read_late: list[float]  # beyond the promptest of them
    cpu: float  # that the process took, of one


def take(steps: IdleSteps, num_steps: int) -> Taken:
    """Runs and reads so many steps."""
    ended, read = [], []
    cpu, began = time.process_time(), time.perf_counter()
    steps.run(num_steps)
    while (record := steps.loop.next()) is not None:
        read.append(time.perf_counter_ns() / 1e3)
        ended.append(record[2] / 1e3)
    share = (time.process_time() - cpu) / (time.perf_counter() - began)
    delays = [there - here for there, here in zip(read, ended, strict=True)]
    return Taken(gaps(ended)[2:], [delay - min(delays) for delay in delays], share)


def stops(steps: IdleSteps, step_us: float, count: int = 100) -> tuple[list[float], int]:
    """Microseconds from a stop to the run's end, and how many runs had one step more than the one that was computed."""
    pick = random.Random(1)
    waited, more = [], 0
    for _ in range(count):
        stopped_at = [0.0]

        def stop(stopped_at: list[float] = stopped_at) -> None:
            time.sleep(pick.uniform(2, 4) * step_us / 1e6)
            stopped_at[0] = time.perf_counter()
            steps.loop.stop()

        stopper = threading.Thread(target=stop)
        steps.run(1 << 30)
        stopper.start()
        read = []
        while steps.loop.next() is not None:
            read.append(time.perf_counter())
        over = time.perf_counter()
        stopper.join()
        waited.append((over - stopped_at[0]) * 1e6)
        more += sum(moment > stopped_at[0] for moment in read) > 1
    return waited, more


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the loop of captured steps.")
    parser.add_argument("--rows", type=int, default=256, help="rows of a step (default: %(default)s)")
    rows = parser.parse_args().rows
    million = IdleSteps(_kernels.StepLoop(64, rows), rows, 1_000_000)
    cycles_per_us = 1e6 / million.back_to_back_us(20)
    print("   step   lead | GPU waits: p50 p99 | read late: p50 p99 |  CPU | stop to end: p50 max | one step more")
    for step_us in STEPS_US:
        cycles, count = int(step_us * cycles_per_us), int(SECONDS * 1e6 / step_us)
        alone = IdleSteps(_kernels.StepLoop(64, rows), rows, cycles)
        floor = median(alone.back_to_back_us(count // 4) for _ in range(4))
        for lead_us in LEADS_US:
            steps = IdleSteps(_kernels.StepLoop(64, rows, lead_us), rows, cycles)
            take(steps, 5)
            taken = take(steps, count)
            waits = [lasted - floor for lasted in taken.lasted]
            waited, more = stops(steps, step_us)
            print(
                f"{step_us:7d} {lead_us:6d} | {median(waits):14.1f} {percentile(waits, 99):6.1f} "
                f"| {median(taken.read_late):12.1f} {percentile(taken.read_late, 99):6.1f} | {taken.cpu:4.2f} "
                f"| {median(waited):13.0f} {max(waited):7.0f} | {more}",
                flush=True,
            )
            steps.loop.close()


if __name__ == "__main__":
    main()
