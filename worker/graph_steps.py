"""Steps of a GPU that computes a run by itself: captured graphs, launched by a loop that holds no GIL."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from .columns import StepShape
from .host_steps import HostSteps
from .kv_cache import KVCache
from .model.decoder import Model
from .ops.dtypes import KERNELS_BUILT
from .ops.follow import NONE
from .step_graphs import CapturedStep, StepGraphs
from .step_rows import StepRows
from .step_sizes import MAX_TOKENS
from .steps import Computed, DeviceLost, Row

if KERNELS_BUILT:
    from . import _kernels

# Steps that may wait to be read before the loop waits in its turn.
_NUM_RECORDS = 64


@dataclass(slots=True)
class _Begun:
    """A step or a run that is not over."""

    captured: CapturedStep | None  # None: the host computes it
    rows: Seq[Row]
    num_draws: int = 0
    num_taken: int = 0
    is_run: bool = False
    is_behind: bool = False  # another one
    # Of a run.
    num_live: int = 0
    total_context: int = 0


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
        self._begun: deque[_Begun] = deque()

    def begin_step(self, rows: Seq[Row]) -> bool:
        """See Steps."""
        with self._device_errors():
            needs_host = any(row.sequence.needs_host for row in rows)
            captured = None if needs_host else self._graphs.find_mixed(_shape_of(rows))
            if captured is not None:
                self._launch(_Begun(captured, rows), self._rows.fill(rows), 1)
                return True
            if self._begun:
                return False
            self._host.begin_step(rows)
            self._begun.append(_Begun(None, rows))
            return True

    def begin_run(self, rows: Seq[Row], num_steps: int) -> bool:
        """See Steps."""
        with self._device_errors():
            count = len(rows)
            total_context = sum(min(row.first + num_steps, row.sequence.spec.max_length - 1) for row in rows)
            captured = self._graphs.find_run(StepShape(count, count, count, total_context))
            if captured is not None:
                begun = _Begun(captured, rows, is_run=True, num_live=count, total_context=total_context)
                self._launch(begun, self._rows.fill_run(rows), num_steps)
                return True
            if self._begun:
                return False
            self._host.begin_run(rows, num_steps)
            self._begun.append(_Begun(None, rows, is_run=True))
            return True

    def settle(self) -> int | None:
        """See Steps."""
        with self._device_errors():
            if not self._begun or self._begun[-1].captured is None:
                return None
            try:
                return self._loop.settle()
            except RuntimeError as error:
                raise DeviceLost(str(error)) from error

    def wait(self) -> bool:
        """See Steps."""
        if not self._begun or self._begun[0].captured is None:
            return True
        return self._loop.wait()

    def wake(self) -> None:
        """See Steps."""
        self._loop.wake()

    def next(self) -> Computed | None:
        """See Steps."""
        with self._device_errors():
            if not self._begun:
                return None
            begun = self._begun[0]
            computed = self._next_of_host() if begun.captured is None else self._next_of_loop(begun)
            if computed is None or not begun.is_run:
                self._begun.popleft()
            return computed

    def _next_of_host(self) -> Computed | None:
        try:
            return self._host.next()
        except Exception:
            self._begun.popleft()
            raise

    def _next_of_loop(self, begun: _Begun) -> Computed | None:
        record = self._next_record()
        if record is None:
            return None
        if not begun.is_run:
            self._next_record()  # none: it is over
        tokens, step_us, _ = record
        # Where another one was before, its end is this one's beginning.
        knows_time = begun.is_behind or begun.num_taken > 0
        begun.num_taken += 1
        begun.num_live = int((tokens >= 0).sum())
        return Computed(tokens[: begun.num_draws].tolist(), step_us if knows_time else None)

    def extend(self, num_steps: int) -> bool:
        """See Steps. Not where a smaller graph would do by now."""
        with self._device_errors():
            run = self._begun[-1]
            if run.captured is None:
                return self._host.extend(num_steps)
            total_context = run.total_context + len(run.rows) * num_steps
            live = StepShape(run.num_live, run.num_live, run.num_live, total_context)
            if self._graphs.find_run(live) is not run.captured:
                return False
            self._rows.fill_tables(run.rows)
            # Before the steps that need them, which are launched later on the same stream.
            self._rows.upload_tables(len(run.rows))
            if not self._loop.extend(num_steps):
                return False
            run.total_context = total_context
            return True

    def stop(self) -> None:
        """See Steps."""
        self._loop.stop()
        self._host.stop()

    def close(self) -> None:
        """See Steps."""
        self._loop.close()

    def _launch(self, begun: _Begun, shape: StepShape, num_steps: int) -> None:
        captured = begun.captured
        assert captured is not None
        begun.num_draws, begun.is_behind = shape.num_draws, bool(self._begun)
        num_rows = captured.shape.num_rows
        self._rows.pad(shape, captured.shape.num_tokens, num_rows)
        self._rows.upload(num_rows)
        if any(row.follows != NONE for row in begun.rows):
            self._graphs.follow(num_rows)
        try:
            self._loop.run(captured.graph, num_steps, self._stream, begun.is_run)
        except RuntimeError as error:
            raise DeviceLost(str(error)) from error
        self._begun.append(begun)

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
        sum(row.first + row.count for row in rows),
    )
