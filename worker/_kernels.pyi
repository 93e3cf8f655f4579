"""CUDA kernels in C++ (cpp/cuda/), where nvcc was there to build them. Knows no torch: tensors come as addresses.

Dtypes are numbered as in worker/ops/dtypes.py; strides are in elements; `stream` is a cudaStream_t of the current
device. All launch and return: RuntimeError says that a launch failed, not that its work did.
"""

from collections.abc import Sequence

def rms_norm(
    dtype: int, x: int, x_outer_stride: int, x_inner_stride: int, residual: int, residual_outer_stride: int,
    residual_inner_stride: int, weight: int, out: int, num_outer: int, num_inner: int, dim: int, eps: float,
    stream: int, /,
) -> None:  # fmt: skip
    """cpp/cuda/norm.h. A `residual` of 0 is none."""

def silu_mul(dtype: int, gate_up: int, row_stride: int, out: int, num_rows: int, dim: int, stream: int, /) -> None:
    """cpp/cuda/activation.h."""

def place_heads(
    dtype: int, q: int, q_token_stride: int, q_head_stride: int, k: int, k_token_stride: int, k_head_stride: int,
    v: int, v_token_stride: int, v_head_stride: int, q_norm: int, k_norm: int, eps: float, positions: int,
    cos_sin: int, num_positions: int, k_cache: int, v_cache: int, slots: int, num_slots: int, block_size: int,
    num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, stream: int, /,
) -> None:  # fmt: skip
    """cpp/cuda/heads.h. An address of 0 leaves its part out. ValueError if head_dim is odd or above 512."""

def copy_blocks(
    sources: Sequence[int], targets: Sequence[int], block_bytes: int, num_source_blocks: int, num_target_blocks: int,
    source_blocks: Sequence[int], target_blocks: Sequence[int], over_the_bus: bool, stream: int, /,
) -> None:  # fmt: skip
    """cpp/cuda/block_copy.h. ValueError if the lists do not fit each other, IndexError on a block that is not there."""

class StepAttention:
    """Paged attention of one step, for all its layers (cpp/cuda/attention.h). It keeps addresses, not tensors."""

    def __init__(
        self, dtype: int, head_dim: int, num_heads: int, num_kv_heads: int, block_size: int, num_blocks: int,
        query_starts: int, context_lens: int, block_tables: int, num_sequences: int, num_tokens: int, table_width: int,
        total_context: int, num_multiprocessors: int, /,
    ) -> None:  # fmt: skip
        """`total_context`: at least the tokens of all contexts together, or -1 if that is not known."""

    @property
    def plan_words(self) -> int:
        """int32 words that `prepare` needs for the plan; 0 if the shape is served by the plain kernel."""
    @property
    def state_words(self) -> int:
        """float32 words that `prepare` needs for what is merged."""
    def prepare(self, plan: int, states: int, stream: int, /) -> None:
        """Once, before the first `attend`: both addresses are used until the last is done."""
    def attend(
        self, q: int, q_token_stride: int, q_head_stride: int, k_cache: int, v_cache: int, out: int, scale: float,
        stream: int, /,
    ) -> None:  # fmt: skip
        """One layer. K and V caches are contiguous [N, G, S, D], `out` [T, H, D], all 16-byte aligned."""

def sample(logits: int, num_rows: int, vocab_size: int, params: int, token_ids: int, stream: int, /) -> None:
    """cpp/cuda/sampler.h. ValueError if `vocab_size` is above 2**22."""
