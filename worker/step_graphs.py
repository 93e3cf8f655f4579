"""Steps of a GPU captured as graphs, one for each size that a step is filled up to.

Knows no sequences: what a replay computes is what the columns hold by then.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

import structlog
import torch

from .columns import StepShape
from .kv_cache import KVCache
from .model.decoder import Model
from .ops.commit import commit
from .ops.dtypes import KERNELS_BUILT
from .ops.follow import follow
from .ops.sampler import sample_packed
from .ops.step_attention import attention_workspace
from .step_rows import StepRows
from .step_sizes import max_context, mixed_sizes, run_sizes

if KERNELS_BUILT:
    from . import _kernels

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A graph, and what it takes at most."""

    graph: _kernels.StepGraph
    shape: StepShape


class StepGraphs:
    """Every graph computes the model, draws tokens, and commits them into `loop`, on the columns of `rows`.

    They share one memory and follow each other on one stream. Raises torch.OutOfMemoryError if the GPU has too little,
    or RuntimeError if it is the driver that refuses it.
    """

    def __init__(
        self, model: Model, kv_cache: KVCache, rows: StepRows, loop: _kernels.StepLoop, num_cache_tokens: int
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._rows = rows
        self._loop = loop
        self._num_cache_tokens = num_cache_tokens
        self._captured: list[torch.cuda.CUDAGraph] = []  # they keep the memory
        self._pool = torch.cuda.graph_pool_handle()
        # Not the default one, which cannot be captured.
        self._stream = torch.cuda.Stream(kv_cache.blocks.device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        runs = [self._shape(size, size) for size in run_sizes(rows.max_rows)]
        mixed = [self._shape(*size) for size in mixed_sizes(rows.max_rows)]
        self._workspace = max((self._workspace_of(shape) for shape in (*runs, *mixed)), key=len)
        started = time.perf_counter()
        before = torch.cuda.mem_get_info(kv_cache.blocks.device)[0]
        # The largest first: the others find room in its memory.
        steps = {shape: self._capture(shape) for shape in sorted((*runs, *mixed), key=_size, reverse=True)}
        self._runs = [steps[shape] for shape in runs]
        self._mixed = [steps[shape] for shape in mixed]
        self._stream.synchronize()
        taken = before - torch.cuda.mem_get_info(kv_cache.blocks.device)[0]
        log.info("graphs_captured", count=len(steps), seconds=time.perf_counter() - started, bytes=taken)

    def find_run(self, shape: StepShape) -> CapturedStep | None:
        """The smallest that takes such a run, if there is one."""
        return next((step for step in self._runs if step.shape.takes(shape)), None)

    def find_mixed(self, shape: StepShape) -> CapturedStep | None:
        """The smallest that takes such a step, if there is one."""
        return next((step for step in self._mixed if step.shape.takes(shape)), None)

    def follow(self, num_rows: int) -> None:
        """Between two steps, in the order of the current stream: gives the first rows what the one before drew."""
        follow(self._rows.device.follow_rows(num_rows), self._loop)

    def _shape(self, num_tokens: int, num_rows: int) -> StepShape:
        most = max_context(num_rows, self._model.config.max_model_len, self._num_cache_tokens)
        return StepShape(num_tokens, num_rows, num_rows, most)

    def _workspace_of(self, shape: StepShape) -> torch.Tensor:
        k_cache, _ = self._kv_cache.layers[0]
        return attention_workspace(
            self._model.dtype, self._model.config.num_heads, k_cache, shape.num_rows, shape.num_tokens,
            self._rows.table_width, shape.total_context, None, self._model.config.windows,
        )  # fmt: skip

    @torch.inference_mode()
    def _capture(self, shape: StepShape) -> CapturedStep:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        self._rows.pad(StepShape(0, 0, 0, 0), shape.num_tokens, shape.num_rows)
        with torch.cuda.stream(self._stream):
            self._rows.upload(shape.num_rows)
            # What libraries load and allocate at first use they do not within a capture.
            self._draw(shape)
            self._stream.synchronize()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                commit(
                    self._draw(shape), self._rows.device.commit_rows(shape.num_rows),
                    self._kv_cache.pool.block_size, self._loop,
                )  # fmt: skip
            except Exception:
                with suppress(RuntimeError):  # it would hide why
                    graph.capture_end()
                raise
            graph.capture_end()
        self._captured.append(graph)
        return CapturedStep(_kernels.StepGraph(graph.raw_cuda_graph(), self._stream.cuda_stream), shape)

    def _draw(self, shape: StepShape) -> torch.Tensor:
        rows = self._rows.device
        attention = self._rows.attention(shape, self._workspace)
        logits = self._model.forward(
            rows.token_ids[: shape.num_tokens], rows.positions[: shape.num_tokens], self._kv_cache.layers, attention,
            rows.logit_rows[: shape.num_draws],
        )  # fmt: skip
        return sample_packed(logits, rows.params[: shape.num_draws])


def _size(shape: StepShape) -> tuple[int, int]:
    return shape.num_tokens, shape.num_rows
