"""Captured steps without a GPU: what a replay and the loop that launches it do, done by the twins of their kernels."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker.graph_steps import GraphSteps
from worker.host_steps import HostSteps
from worker.kv_cache import KVCache
from worker.model.decoder import Model
from worker.ops.commit import LIVE, commit_reference
from worker.ops.sampler import sample_packed
from worker.step_rows import StepRows, StepShape
from worker.step_sizes import MAX_TOKENS, mixed_sizes, run_sizes


@dataclass(frozen=True, slots=True)
class EagerGraph:
    """A size; its replay is computed operation by operation."""

    graph: StepShape
    shape: StepShape


class EagerGraphs:
    """The sizes that are captured on a GPU, the smallest that fits first."""

    def __init__(self, rows: StepRows, max_context: int) -> None:
        def graph(num_tokens: int, num_rows: int) -> EagerGraph:
            shape = StepShape(num_tokens, num_rows, num_rows, max_context)
            return EagerGraph(shape, shape)

        self.runs = [graph(size, size) for size in run_sizes(rows.max_rows)]
        self.mixed = [graph(*size) for size in mixed_sizes(rows.max_rows)]

    def find_run(self, shape: StepShape) -> EagerGraph | None:
        return next((each for each in self.runs if each.shape.takes(shape)), None)

    def find_mixed(self, shape: StepShape) -> EagerGraph | None:
        return next((each for each in self.mixed if each.shape.takes(shape)), None)


class EagerLoop:
    """The face of `_kernels.StepLoop`. `rng` says whether a step is launched before the one before it is seen; without
    one, none is."""

    def __init__(self, model: Model, kv_cache: KVCache, rows: StepRows, rng: random.Random | None) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._rows = rows
        self._rng = rng
        self._records: deque[npt.NDArray[np.int32]] = deque()
        self._shape = StepShape(0, 0, 0, 0)
        self._num_to_launch = 0
        self._stopped = False
        self.num_launched = 0

    def run(self, graph: StepShape, num_steps: int, stream: int) -> None:
        assert not self._records
        assert stream == 0
        self._shape, self._num_to_launch, self._stopped = graph, num_steps, False
        self._launch()

    def next(self) -> tuple[npt.NDArray[np.int32], int, int] | None:
        while self._num_to_launch and not self._stopped and self._is_due():
            self._launch()
        return (self._records.popleft(), 7, 0) if self._records else None

    def extend(self, num_steps: int) -> bool:
        if self._stopped or (self._num_to_launch == 0 and not self._records):
            return False
        if bool((self._rows.device.status[: self._shape.num_rows] == LIVE).any()):
            self._num_to_launch += num_steps
        return True

    def stop(self) -> None:
        self._stopped = True

    def _is_due(self) -> bool:
        ahead = self._rng is not None and len(self._records) < 2 and self._rng.random() < 0.5
        return ahead or not self._records

    def _launch(self) -> None:
        shape, rows = self._shape, self._rows.device
        logits = self._model.forward(
            rows.token_ids[: shape.num_tokens], rows.positions[: shape.num_tokens], self._kv_cache.layers,
            self._rows.attention(shape), rows.logit_rows[: shape.num_draws],
        )  # fmt: skip
        drawn = sample_packed(logits, rows.params[: shape.num_draws])
        columns = rows.commit_rows(shape.num_rows)
        self._records.append(commit_reference(drawn, columns, self._kv_cache.pool.block_size).numpy())
        self.num_launched += 1
        self._num_to_launch = self._num_to_launch - 1 if bool((columns.status == LIVE).any()) else 0


def eager_graph_steps(model: Model, kv_cache: KVCache, rng: random.Random | None, max_rows: int = 8) -> GraphSteps:
    """GraphSteps whose device is this one. `max_rows` sequences, and as much context as the cache holds."""
    block_size = kv_cache.pool.block_size
    rows = StepRows(MAX_TOKENS, max_rows, -(-model.config.max_model_len // block_size), torch.device("cpu"))
    graphs = EagerGraphs(rows, kv_cache.pool.num_total * block_size)
    loop = EagerLoop(model, kv_cache, rows, rng)
    return GraphSteps(HostSteps(model, kv_cache), rows, graphs, loop, 0)  # type: ignore[arg-type]
