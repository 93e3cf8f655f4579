"""Steps of a GPU that computes a run by itself: captured graphs, launched by a loop that holds no GIL."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch

from .host_steps import HostSteps
from .kv_cache import KVCache
from .model.decoder import Model
from .ops.dtypes import KERNELS_BUILT
from .sequence import Sequence
from .step_graphs import CapturedStep, StepGraphs
from .step_rows import StepRows, StepShape
from .step_sizes import MAX_TOKENS
from .steps import Computed, DeviceLost, Row

if KERNELS_BUILT:
    from . import _kernels

# Steps that may wait to be read before the loop waits in its turn.
_NUM_RECORDS = 64


class GraphSteps:
    """`Steps` for a GPU. What no graph was captured for, HostSteps computes."""

    def __init__(
        self, host: HostSteps, rows: StepRows, graphs: StepGraphs, loop: _kernels.StepLoop, stream: int
    ) -> None:
        """`graphs` were captured on `rows` and for `loop`. The caller's own work goes to `stream`, too."""
        self._host = host
        self._rows = rows
        self._graphs = graphs
        self._loop = loop
        self._stream = stream
        # Of what was begun: nothing if the host computes it.
        self._captured: CapturedStep | None = None
        self._num_draws = 0
        self._is_first = False
        # Of the run.
        self._sequences: Seq[Sequence] = ()
        self._num_live = 0
        self._total_context = 0

    def begin_step(self, rows: Seq[Row]) -> None:
        """See Steps."""
        with self._device_errors():
            needs_host = any(row.sequence.needs_host for row in rows)
            self._captured = None if needs_host else self._graphs.find_mixed(_shape_of(rows))
            if self._captured is None:
                self._host.begin_step(rows)
                return
            self._launch(self._captured, self._rows.fill(rows), 1)

    def begin_run(self, sequences: Seq[Sequence], num_steps: int) -> None:
        """See Steps."""
        with self._device_errors():
            count = len(sequences)
            self._total_context = sum(each.num_computed + min(num_steps, each.num_remaining) for each in sequences)
            self._captured = self._graphs.find_run(StepShape(count, count, count, self._total_context))
            if self._captured is None:
                self._host.begin_run(sequences, num_steps)
                return
            self._sequences, self._num_live = sequences, count
            self._launch(self._captured, self._rows.fill_run(sequences), num_steps)

    def next(self) -> Computed | None:
        """See Steps."""
        with self._device_errors():
            if self._captured is None:
                return self._host.next()
            record = self._next_record()
            if record is None:
                return None
            tokens, step_us, _ = record
            self._num_live = int((tokens >= 0).sum())
            # Of the first the device knows when it ended, and not since when it was waited for.
            is_first, self._is_first = self._is_first, False
            return Computed(tokens[: self._num_draws].tolist(), None if is_first else step_us)

    def extend(self, num_steps: int) -> bool:
        """See Steps. Not where a smaller graph would do by now."""
        with self._device_errors():
            if self._captured is None:
                return self._host.extend(num_steps)
            total_context = self._total_context + len(self._sequences) * num_steps
            live = StepShape(self._num_live, self._num_live, self._num_live, total_context)
            if self._graphs.find_run(live) is not self._captured:
                return False
            self._rows.fill_tables(self._sequences)
            # Before the steps that need them, which are launched later on the same stream.
            self._rows.upload_tables(len(self._sequences))
            if not self._loop.extend(num_steps):
                return False
            self._total_context = total_context
            return True

    def stop(self) -> None:
        """See Steps."""
        self._loop.stop()
        self._host.stop()

    def _launch(self, captured: CapturedStep, shape: StepShape, num_steps: int) -> None:
        self._num_draws, self._is_first = shape.num_draws, True
        self._rows.pad(shape, captured.shape.num_tokens, captured.shape.num_rows)
        self._rows.upload(captured.shape.num_rows)
        try:
            self._loop.run(captured.graph, num_steps, self._stream)
        except RuntimeError as error:
            raise DeviceLost(str(error)) from error

    def _next_record(self) -> tuple[npt.NDArray[np.int32], int, int] | None:
        try:
            return self._loop.next()
        except RuntimeError as error:
            raise DeviceLost(str(error)) from error

    @contextmanager
    def _device_errors(self) -> Iterator[None]:
        """Tells of what fails whether another step makes sense."""
        try:
            yield
        except DeviceLost:
            raise
        except Exception as error:
            try:
                torch.cuda.synchronize()
            except RuntimeError as problem:
                raise DeviceLost(str(problem)) from error
            raise


def capture_steps(model: Model, kv_cache: KVCache, max_num_seqs: int, num_cache_tokens: int) -> GraphSteps:
    """Steps of up to so many sequences on the GPU of `kv_cache`; takes seconds. Their contexts are as long together as
    a cache of `num_cache_tokens` tokens allows.

    Raises torch.OutOfMemoryError if the GPU has too little memory.
    """
    device = kv_cache.blocks.device
    table_width = -(-model.config.max_model_len // kv_cache.pool.block_size)
    rows = StepRows(max(MAX_TOKENS, max_num_seqs), max_num_seqs, table_width, device)
    with torch.cuda.device(device):
        loop = _kernels.StepLoop(_NUM_RECORDS, max_num_seqs)
        graphs = StepGraphs(model, kv_cache, rows, loop, num_cache_tokens)
        stream = torch.cuda.current_stream().cuda_stream
    return GraphSteps(HostSteps(model, kv_cache), rows, graphs, loop, stream)


def _shape_of(rows: Seq[Row]) -> StepShape:
    return StepShape(
        sum(row.count for row in rows),
        len(rows),
        sum(row.num_draws for row in rows),
        sum(row.sequence.num_computed + row.count for row in rows),
    )
