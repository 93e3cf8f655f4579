"""Captured steps without a GPU: what a replay and the loop that launches it do, done by the twins of their kernels."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from worker.columns import StepShape
from worker.graph_steps import GraphSteps
from worker.host_steps import HostSteps
from worker.kv_cache import KVCache
from worker.model.decoder import Model
from worker.ops.commit import LIVE, commit_reference
from worker.ops.follow import follow_reference
from worker.ops.sampler import sample_packed
from worker.step_rows import StepRows
from worker.step_sizes import MAX_TOKENS, mixed_sizes, run_sizes


@dataclass(frozen=True, slots=True)
class EagerGraph:
    """A size; its replay is computed operation by operation."""

    graph: StepShape
    shape: StepShape


class EagerLoop:
    """The face of `_kernels.StepLoop`. `rng` says whether a step is launched before the one before it is seen; without
    one, none is. What is launched is computed at once."""

    def __init__(self, model: Model, kv_cache: KVCache, rows: StepRows, rng: random.Random | None) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._rows = rows
        self._rng = rng
        self._runs: deque[EagerRun] = deque()
        self._stopped = False
        self.num_launched = 0
        self.last_tokens = torch.empty(0, dtype=torch.int32)

    def run(self, graph: StepShape, num_steps: int, stream: int, stops: bool) -> None:
        assert stream == 0
        assert not self._runs or self._runs[-1].num_to_launch == 0
        self._runs.append(EagerRun(graph, num_steps, stops))
        self._stopped = False
        # The thread may look at it before the next call, or not.
        if len(self._runs) == 1 or self._chance():
            self._launch()

    def settle(self) -> int:
        if not self._runs:
            return 0
        run = self._runs[-1]
        if run.stops:
            run.num_to_launch = 0
        while run.num_to_launch:
            self._launch()
        return len(run.records)

    def wait(self) -> bool:
        return True

    def wake(self) -> None:
        pass

    def next(self) -> tuple[npt.NDArray[np.int32], int, int] | None:
        if not self._runs:
            return None
        run, last = self._runs[0], self._runs[-1]
        while last.num_to_launch and not (self._stopped and last.stops) and self._is_due(run):
            self._launch()
        if run.records:
            record = run.records.popleft()
            if run is last and not run.records and run.num_to_launch and not self._stopped and self._chance():
                self._launch()
            return record, 7, 0
        self._runs.popleft()
        return None

    def extend(self, num_steps: int) -> bool:
        run = self._runs[-1] if self._runs else None
        if run is None or self._stopped or (run.num_to_launch == 0 and not run.records):
            return False
        if bool((self._rows.device.status[: run.shape.num_rows] == LIVE).any()):
            run.num_to_launch += num_steps
        return True

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        self._runs.clear()

    def _chance(self) -> bool:
        return self._rng is not None and self._rng.random() < 0.5

    def _is_due(self, run: EagerRun) -> bool:
        if run is self._runs[-1]:
            return not run.records or (len(run.records) < 2 and self._chance())
        # It follows: not before the other's last steps are taken, or shortly before.
        return len(run.records) < 2 and self._chance()

    def _launch(self) -> None:
        run, rows = self._runs[-1], self._rows.device
        shape = run.shape
        logits = self._model.forward(
            rows.token_ids[: shape.num_tokens], rows.positions[: shape.num_tokens], self._kv_cache.layers,
            self._rows.attention(shape), rows.logit_rows[: shape.num_draws],
        )  # fmt: skip
        drawn = sample_packed(logits, rows.params[: shape.num_draws])
        columns = rows.commit_rows(shape.num_rows)
        self.last_tokens = commit_reference(drawn, columns, self._kv_cache.pool.block_size)
        run.records.append(self.last_tokens.numpy())
        self.num_launched += 1
        run.num_to_launch = run.num_to_launch - 1 if bool((columns.status == LIVE).any()) else 0


@dataclass(slots=True)
class EagerRun:
    """A run of the loop."""

    shape: StepShape
    num_to_launch: int
    stops: bool
    records: deque[npt.NDArray[np.int32]] = field(default_factory=deque)


class EagerGraphs:
    """The sizes that are captured on a GPU, the smallest that fits first."""

    def __init__(self, rows: StepRows, max_context: int, loop: EagerLoop) -> None:
        def graph(num_tokens: int, num_rows: int) -> EagerGraph:
            shape = StepShape(num_tokens, num_rows, num_rows, max_context)
            return EagerGraph(shape, shape)

        self.runs = [graph(size, size) for size in run_sizes(rows.max_rows)]
        self.mixed = [graph(*size) for size in mixed_sizes(rows.max_rows)]
        self._rows = rows
        self._loop = loop

    def find_run(self, shape: StepShape) -> EagerGraph | None:
        return next((each for each in self.runs if each.shape.takes(shape)), None)

    def find_mixed(self, shape: StepShape) -> EagerGraph | None:
        return next((each for each in self.mixed if each.shape.takes(shape)), None)

    def follow(self, num_rows: int) -> None:
        follow_reference(self._rows.device.follow_rows(num_rows), self._loop.last_tokens)


def eager_graph_steps(model: Model, kv_cache: KVCache, rng: random.Random | None, max_rows: int = 8) -> GraphSteps:
    """GraphSteps whose device is this one. `max_rows` sequences, and as much context as the cache holds."""
    block_size = kv_cache.pool.block_size
    rows = StepRows(MAX_TOKENS, max_rows, -(-model.config.max_model_len // block_size), torch.device("cpu"))
    loop = EagerLoop(model, kv_cache, rows, rng)
    graphs = EagerGraphs(rows, kv_cache.pool.num_total * block_size, loop)
    return GraphSteps(HostSteps(model, kv_cache), rows, graphs, loop, 0)  # type: ignore[arg-type]
