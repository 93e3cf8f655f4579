"""Runs of small captured steps on a GPU: the commit against its twin, and the loop's records, stops and failures."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.worker.cuda import needs_cuda
from tests.worker.test_commit import VOCAB, random_rows
from tests.worker.test_follow import random_followers
from worker.ops.commit import NO_TOKEN, CommitRows, commit, commit_reference
from worker.ops.dtypes import KERNELS_BUILT
from worker.ops.follow import FollowRows, follow, follow_reference

if KERNELS_BUILT:
    from worker import _kernels
if TYPE_CHECKING:
    from worker._kernels import StepGraph, StepLoop

pytestmark = needs_cuda

MAX_ROWS = 600
NUM_RECORDS = 8


@pytest.fixture
def loop() -> Iterator[StepLoop]:
    made = _kernels.StepLoop(NUM_RECORDS, MAX_ROWS)
    yield made
    made.close()


def on_gpu(rows: CommitRows) -> CommitRows:
    return CommitRows(**{field.name: getattr(rows, field.name).cuda() for field in dataclasses.fields(rows)})


class ScriptedSteps:
    """A captured step that spins for a while and commits the tokens which a script [R, P] has for the positions."""

    def __init__(
        self, loop: StepLoop, rows: CommitRows, script: Tensor, block_size: int, spin_cycles: int = 1000
    ) -> None:
        self.loop, self.rows, self.script, self.block_size = loop, on_gpu(rows), script.cuda(), block_size
        self.stream = torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self._sampled()  # whatever is set up at first use is not part of a graph
            self._graph = torch.cuda.CUDAGraph(keep_graph=True)
            with torch.cuda.graph(self._graph, stream=self.stream):
                torch.cuda._sleep(spin_cycles)
                commit(self._sampled(), self.rows, block_size, loop)
        self.step_graph: StepGraph = _kernels.StepGraph(self._graph.raw_cuda_graph(), self.stream.cuda_stream)

    def _sampled(self) -> Tensor:
        positions = self.rows.positions[: len(self.script)]
        return self.script.gather(1, positions[:, None].clamp(max=self.script.shape[1] - 1))[:, 0].contiguous()

    def run(self, num_steps: int, stops: bool = True) -> None:
        self.loop.run(self.step_graph, num_steps, self.stream.cuda_stream, stops)


def take_all(loop: StepLoop) -> list[np.ndarray]:
    taken = []
    while step := loop.next():
        tokens, step_us, _ = step
        assert step_us >= 0
        taken.append(tokens)
    return taken


def endless_rows(num_rows: int = 3) -> CommitRows:
    """Rows that nothing ends."""
    rows = random_rows(random.Random(0), num_rows, 4, 16)
    rows.status[:], rows.stop_ids[:] = 1, -1
    rows.positions[:], rows.context_lens[:], rows.remaining[:] = 0, 1, 1 << 30
    return rows


@pytest.mark.parametrize("seed", range(12))
def test_steps_equal_the_twins(loop: StepLoop, seed: int) -> None:
    """Rows of every state and number, to the end of the last, also those that are empty from the beginning."""
    pick = random.Random(seed)
    torch.manual_seed(seed)
    num_rows = [1, 2, 3, 31, 32, 33, 64, 255, 512, 513, MAX_ROWS, 7][seed]
    width, block_size = pick.randrange(1, 5), pick.choice([1, 4, 16])
    rows = random_rows(pick, num_rows, width, block_size)
    script = torch.randint(-1, VOCAB, (num_rows, width * block_size + 1))
    steps = ScriptedSteps(loop, rows, script, block_size)
    steps.run(width * block_size + 2)
    taken = take_all(loop)
    assert 1 <= len(taken) <= width * block_size + 2
    for tokens in taken:
        sampled = script.gather(1, rows.positions[:num_rows, None])[:, 0]
        expected = commit_reference(sampled, rows, block_size)
        assert tokens.dtype == np.int32
        assert tokens.tolist() == expected.tolist()
    assert not rows.status.any(), "the run ended with rows that went on"
    torch.cuda.synchronize()
    for field in dataclasses.fields(rows):
        assert torch.equal(getattr(steps.rows, field.name).cpu(), getattr(rows, field.name)), field.name


def test_a_long_run_hands_out_every_step_in_order(loop: StepLoop) -> None:
    script = torch.arange(2000).expand(3, -1).contiguous()
    steps = ScriptedSteps(loop, endless_rows(), script, 16, spin_cycles=100_000)
    steps.run(700)
    assert loop.extend(300)
    ends = []
    for expected in range(1000):
        step = loop.next()
        assert step is not None
        assert step[0].tolist() == [expected] * 3
        ends.append(step[2])
    assert loop.next() is None
    assert loop.next() is None
    assert not loop.extend(1)
    assert ends == sorted(ends)


def test_runs_follow_runs_that_their_rows_ended(loop: StepLoop) -> None:
    """The step that was on its way when the last row ended belongs to no run."""
    rows = endless_rows()
    script = torch.arange(2000).expand(3, -1).contiguous()
    steps = ScriptedSteps(loop, rows, script, 16, spin_cycles=200_000)
    for num_tokens in (3, 1, 5, 8):
        with torch.cuda.stream(steps.stream):
            for column, value in (("status", 1), ("positions", 0), ("remaining", num_tokens)):
                getattr(steps.rows, column).fill_(value)
        steps.run(20)
        assert [tokens.tolist() for tokens in take_all(loop)] == [[step] * 3 for step in range(num_tokens)]


def test_rows_that_were_empty_have_no_token(loop: StepLoop) -> None:
    rows = endless_rows()
    rows.status[1] = 0
    steps = ScriptedSteps(loop, rows, torch.arange(9).expand(3, -1).contiguous(), 16)
    steps.run(2)
    assert [tokens.tolist() for tokens in take_all(loop)] == [[0, NO_TOKEN, 0], [1, NO_TOKEN, 1]]


def test_a_stop_ends_the_run_at_a_boundary(loop: StepLoop) -> None:
    script = torch.arange(5000).expand(3, -1).contiguous()
    steps = ScriptedSteps(loop, endless_rows(), script, 16, spin_cycles=500_000)
    taken = 0
    for _ in range(20):
        steps.run(1_000_000)
        stopper = threading.Timer(0.003, loop.stop)
        stopper.start()
        for tokens in take_all(loop):
            assert tokens.tolist() == [taken] * 3
            taken += 1
        stopper.join()
        torch.cuda.synchronize()
        assert steps.rows.positions[0] == taken, "steps were computed that nobody was told of"


def test_a_run_begins_behind_another_and_knows_how_many_steps_are_to_come(loop: StepLoop) -> None:
    script = torch.arange(60_000).expand(3, -1).contiguous()
    steps = ScriptedSteps(loop, endless_rows(), script, 16, spin_cycles=500_000)
    pick = random.Random(5)
    expected = 0

    def take(count: int) -> None:
        nonlocal expected
        for _ in range(count):
            while not loop.wait():
                pass
            step = loop.next()
            assert step is not None
            assert step[0].tolist() == [expected] * 3
            expected += 1

    for _ in range(50):
        steps.run(1_000_000)
        take(pick.randrange(4))
        time.sleep(pick.random() * 1e-3)
        loop.wake()
        num_steps_to_come = loop.settle()
        steps.run(1, stops=False)
        loop.stop()
        take(num_steps_to_come)
        assert loop.next() is None
        take(1)
        assert loop.next() is None
        assert loop.next() is None


@pytest.mark.parametrize("seed", range(6))
def test_rows_that_follow_equal_the_twins(loop: StepLoop, seed: int) -> None:
    pick = random.Random(seed)
    torch.manual_seed(seed)
    num_before, num_rows = pick.choice([1, 33, MAX_ROWS]), pick.choice([1, 2, 127, 129, MAX_ROWS])
    before = endless_rows(num_before)
    before.status[:] = torch.randint(0, 2, (num_before,), dtype=torch.int32)
    script = torch.randint(-1, VOCAB, (num_before, 9))
    ScriptedSteps(loop, before, script, 16).run(1)
    (tokens,) = take_all(loop)
    counts = torch.randint(0, 4, (num_rows,))
    rows = random_followers(num_before, counts)
    on_device = FollowRows(**{field.name: getattr(rows, field.name).cuda() for field in dataclasses.fields(rows)})
    follow(on_device, loop)
    follow_reference(rows, torch.from_numpy(tokens))
    torch.cuda.synchronize()
    for field in dataclasses.fields(rows):
        assert torch.equal(getattr(on_device, field.name).cpu(), getattr(rows, field.name)), field.name


def test_steps_wait_for_the_taker(loop: StepLoop) -> None:
    steps = ScriptedSteps(loop, endless_rows(), torch.arange(200).expand(3, -1).contiguous(), 16)
    steps.run(100)
    time.sleep(0.05)
    torch.cuda.synchronize()
    assert steps.rows.positions[0] <= NUM_RECORDS + 2
    assert [tokens[0] for tokens in take_all(loop)] == list(range(100))


def test_what_does_not_fit_is_refused(loop: StepLoop) -> None:
    with pytest.raises(ValueError, match="too few"):
        _kernels.StepLoop(1, 1)
    steps = ScriptedSteps(loop, endless_rows(), torch.zeros(3, 9, dtype=torch.int64), 16)
    with pytest.raises(ValueError, match="at least one step"):
        steps.run(0)
    steps.run(1_000_000)
    with pytest.raises(RuntimeError, match="goes on"):
        steps.run(2)
    loop.stop()
    assert take_all(loop)
    with pytest.raises(ValueError, match="do not fit into a record"):
        ScriptedSteps(loop, endless_rows(MAX_ROWS + 1), torch.zeros(MAX_ROWS + 1, 9, dtype=torch.int64), 16)
    torch.cuda.synchronize()


def test_a_loop_closed_in_mid_run_tells_its_taker(loop: StepLoop) -> None:
    steps = ScriptedSteps(loop, endless_rows(), torch.zeros(3, 9, dtype=torch.int64), 16, spin_cycles=500_000)
    steps.run(1_000_000)
    closer = threading.Timer(0.01, loop.close)
    closer.start()
    with pytest.raises(RuntimeError, match="closed"):
        take_all(loop)
    closer.join()
    with pytest.raises(RuntimeError, match="closed"):
        steps.run(1)


def test_a_step_without_its_record_is_an_error(loop: StepLoop) -> None:
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, stream=stream):
        torch.cuda._sleep(1000)
    loop.run(_kernels.StepGraph(graph.raw_cuda_graph(), stream.cuda_stream), 3, stream.cuda_stream, True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="without leaving its record"):
            loop.next()


FAULT = """
import random, torch
from tests.worker.test_cuda_step_loop import ScriptedSteps, endless_rows
from worker import _kernels

loop = _kernels.StepLoop(8, 8)
steps = ScriptedSteps(loop, endless_rows(), torch.zeros(3, 9, dtype=torch.int64), 16)
steps.rows.positions[:] = -(1 << 40)  # the script has nothing there, and gather says so
steps.run(5)
try:
    while loop.next():
        pass
except RuntimeError as error:
    print("raised:", error)
loop.close()
"""


def test_a_fault_on_the_device_is_raised() -> None:
    """In a process of its own: nothing works on the GPU after it."""
    done = subprocess.run([sys.executable, "-c", FAULT], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("raised: step: "), done.stdout + done.stderr
