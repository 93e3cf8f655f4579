"""CUDA kernels in C++ (cpp/cuda/), where nvcc was there to build them. Knows no torch: tensors come as addresses.

Dtypes are numbered as in worker/ops/dtypes.py; strides are in elements; `stream` is a cudaStream_t of the current
device. All launch and return: RuntimeError says that a launch failed, not that its work did.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

def rms_norm(
    dtype: int, x: int, x_outer_stride: int, x_inner_stride: int, residual: int, residual_outer_stride: int,
    residual_inner_stride: int, weight: int, out: int, num_outer: int, num_inner: int, dim: int, eps: float,
    stream: int, /,
) -> None:  # fmt: skip
    """cpp/cuda/norm.h. A `residual` of 0 is none."""

def gate_mul(
    dtype: int, activation: int, gate_up: int, row_stride: int, out: int, num_rows: int, dim: int, stream: int, /
) -> None:  # fmt: skip
    """cpp/cuda/activation.h."""

MAX_QUANTIZED_DIM: int

def quantize_rows(
    x: int, x_stride: int, values: int, scales: int, num_rows: int, dim: int, stream: int, /
) -> None:  # fmt: skip
    """cpp/cuda/quantize.h, as the next two. ValueError if dim is no multiple of 8 or above MAX_QUANTIZED_DIM."""

def rms_norm_quantized(
    x: int, x_stride: int, residual: int, residual_stride: int, weight: int, eps: float, values: int, scales: int,
    num_rows: int, dim: int, stream: int, /,
) -> None:  # fmt: skip
    """A `residual` of 0 is none."""

def silu_mul_quantized(
    gate_up: int, row_stride: int, of_rows: int, of_outputs: int, bias: int, values: int, scales: int, num_rows: int,
    dim: int, stream: int, /,
) -> None:  # fmt: skip
    """gate_up [T, 2 * dim]. An address of 0 leaves its part out, `of_rows` all three."""

def rescale(
    sums: int, num_rows: int, num_outputs: int, of_rows: int, of_outputs: int, bias: int, stream: int, /
) -> None:  # fmt: skip
    """cpp/cuda/quantize.h. A `bias` of 0 is none. ValueError if num_outputs is no multiple of 8."""

def place_heads(
    dtype: int, cache_dtype: int, q: int, q_token_stride: int, q_head_stride: int, k: int, k_token_stride: int,
    k_head_stride: int, v: int, v_token_stride: int, v_head_stride: int, q_norm: int, k_norm: int, eps: float,
    positions: int, cos_sin: int, num_positions: int, k_cache: int, v_cache: int, k_scale: float, v_scale: float,
    slots: int, num_slots: int, block_size: int, num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int,
    stream: int, /,
) -> None:  # fmt: skip
    """cpp/cuda/heads.h. An address of 0 leaves its part out. ValueError if head_dim is odd or above 512, or the cache's
    dtype is none for these heads."""

def copy_blocks(
    sources: Sequence[int], targets: Sequence[int], block_bytes: int, num_source_blocks: int, num_target_blocks: int,
    source_blocks: Sequence[int], target_blocks: Sequence[int], over_the_bus: bool, stream: int, /,
) -> None:  # fmt: skip
    """cpp/cuda/block_copy.h. ValueError if the lists do not fit each other, IndexError on a block that is not there."""

class StepAttention:
    """Paged attention of one step, for all its layers (cpp/cuda/attention.h). It keeps addresses, not tensors."""

    def __init__(
        self, dtype: int, cache_dtype: int, head_dim: int, num_heads: int, num_kv_heads: int, block_size: int,
        num_blocks: int, query_starts: int, context_lens: int, block_tables: int, num_sequences: int, num_tokens: int,
        table_width: int, total_context: int, num_chunked: int, num_multiprocessors: int, window: int, /,
    ) -> None:  # fmt: skip
        """`total_context`: at least the tokens of all contexts together, `num_chunked`: at least the sequences with
        more than one token; -1 if that is not known. A `window` of 0 is none."""

    @property
    def workspace_words(self) -> int:
        """32-bit words that `prepare` needs, a multiple of four; 0 if the shape is served by the plain kernel."""
    def prepare(self, workspace: int, stream: int, /) -> None:
        """Once, before the first `attend`: the 16-byte aligned memory is used until the last is done."""
    def attend(
        self, q: int, q_token_stride: int, q_head_stride: int, k_cache: int, v_cache: int, out: int, scale: float,
        k_scale: float, v_scale: float, softcap: float, stream: int, /,
    ) -> None:  # fmt: skip
        """One layer. A `softcap` of 0 is none. K and V caches are contiguous [N, G, S, D], `out` [T, H, D], all 16-byte
        aligned."""

class SkinnyLinear:
    """cpp/cuda/linear_skinny.h. Keeps addresses, not tensors. RuntimeError where the GPU is not a Hopper."""

    def __init__(
        self, dtype: int, weight: int, row_stride: int, num_outputs: int, depth: int, bias: int, left: int,
        num_multiprocessors: int, /,
    ) -> None:  # fmt: skip
        """A `bias` of 0 is none."""
    @staticmethod
    def left_bytes(num_multiprocessors: int, /) -> int: ...
    def multiply(
        self, x: int, x_stride: int, num_rows: int, out: int, wide: bool, gated: bool, stream: int, /
    ) -> None: ...

def sample(logits: int, num_rows: int, vocab_size: int, params: int, token_ids: int, stream: int, /) -> None:
    """cpp/cuda/sampler.h. ValueError if `vocab_size` is above 2**22."""

def commit_step(
    sampled: int, num_rows: int, token_ids: int, positions: int, slots: int, context_lens: int, block_tables: int,
    table_width: int, block_size: int, params: int, status: int, remaining: int, stop_ids: int, loop: StepLoop,
    stream: int, /,
) -> None:  # fmt: skip
    """cpp/cuda/commit.h. ValueError if `num_rows` is above the loop's `max_rows`."""

def follow_step(
    follows: int, query_starts: int, stop_ids: int, token_ids: int, slots: int, context_lens: int, status: int,
    num_rows: int, loop: StepLoop, stream: int, /,
) -> None:  # fmt: skip
    """cpp/cuda/follow.h. ValueError if `num_rows` is above the loop's `max_rows`."""

class StepGraph:
    """A captured step, ready to be launched (cpp/cuda/step_graph.h). The caller keeps what it works on."""

    def __init__(self, graph: int, stream: int, /) -> None:
        """`graph`: a cudaGraph_t, not needed afterwards. RuntimeError if it cannot be instantiated."""

class StepLoop:
    """Launches the steps of a run, one behind the other, and hands out their records (cpp/cuda/step_loop.h).

    A run is `num_steps` launches of a graph whose last kernel is `commit_step` into this loop; the loop launches all
    such graphs. It ends after its steps, with the step that leaves no row live, or where it is stopped. At most one
    step is queued behind the one that runs. A thread of its own does this, without the GIL.
    """

    def __init__(self, num_records: int, max_rows: int, lead_us: int = 100, /) -> None:
        """For the current device. So many records may wait for `next` (at least 2) before launching waits for it;
        the next step is launched `lead_us` before the one that runs is expected to end."""
    def run(self, graph: StepGraph, num_steps: int, stream: int, stops: bool, /) -> None:
        """Begins a run, behind those that are on: its first step is launched shortly before theirs are expected to end,
        or at once; in any case behind what `stream` has to do by now.

        The run before must have nothing left to launch: see `settle`. A `stop` that came before is forgotten: look for
        its cause once more after this. One that comes later is not for this run if not `stops`. Keep `graph` until the
        run after this one has begun. RuntimeError if the device has failed, the run before goes on, or the loop is
        closed; ValueError if `num_steps` is below 1.
        """
    def settle(self) -> int:
        """Launches nothing more of the last run, or all that is left of it if it does not stop. How many of its steps
        `next` has not handed out yet. What the stream is given from now on comes behind them."""
    def extend(self, num_steps: int, /) -> bool:
        """Adds steps to the last run; False if there is none or it will launch no more.

        Rows take their next slot from the block table when a step is committed: the first added step's must be there
        when the last one of the run so far ends.
        """
    def wait(self) -> bool:
        """Waits, without the GIL, until `next` need not, or until `wake`; whether the former."""
    def wake(self) -> None:
        """Lets whoever is in `wait`, or comes next, go. From any thread."""
    def next(self) -> tuple[npt.NDArray[np.int32], int, int] | None:
        """Waits, without the GIL, for the oldest run's next step: each row's token (worker/ops/commit.py), the time the
        step took in microseconds, and when it ended in nanoseconds of the GPU's clock. None, once: that run is over.
        None as well if there is no run.

        RuntimeError if the device has failed, or if the loop is closed; the loop is of no use afterwards.
        """
    def stop(self) -> None:
        """Launches no further step of the last run. From any thread; takes no lock. What is launched is still handed
        out. A run may so end without any step."""
    def close(self) -> None:
        """Drops what is not launched, waits for the rest, ends the thread. A `next` that waits raises RuntimeError."""

def penalize(logits: int, num_rows: int, vocab_size: int, rows: int, tokens: int, masks: int, stream: int, /) -> None:
    """cpp/cuda/penalties.h. Changes the logits in place."""

def count_drawn(token_ids: int, num_rows: int, rows: int, tokens: int, stream: int, /) -> None:
    """cpp/cuda/penalties.h. Changes rows and tokens in place."""

def logprobs(
    logits: int, num_rows: int, vocab_size: int, chosen_ids: int, num_top: int, width: int, chosen: int, top_ids: int,
    top_logprobs: int, stream: int, /,
) -> None:  # fmt: skip
    """cpp/cuda/logprobs.h. ValueError if `vocab_size` is above 2**22 or `width` above 20."""
