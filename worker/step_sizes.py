"""The sizes of steps that a GPU captures, and to which smaller ones are filled up. Pure arithmetic."""

from __future__ import annotations

import torch

from .model.config import ModelConfig
from .model.tensors import workspace_bytes

# Larger steps keep a GPU busy for longer than their operations take to be launched one by one.
MAX_TOKENS = 1024
# Close to each other where an arrival's prompt lies beside those that decode. None from 384 to 512, since what the
# libraries multiply there takes longer than 512 tokens do.
_MIXED_TOKENS = (*range(32, 385, 32), 512, 576, *range(640, MAX_TOKENS + 1, 128))
_MIXED_ROWS = (8, 32, 128, 256, 512)
# Tokens that attention merges at a time (cpp/cuda/attention_plan.cuh).
CHUNK_TOKENS = 512
# Of a layer in a captured step, on the device: a dozen kernels and their arguments.
_LAYER_BYTES = 12 << 10


def max_context(num_rows: int, max_model_len: int, num_cache_tokens: int) -> int:
    """Tokens that the contexts of so many rows have together at most. Rows that share blocks have more than the cache
    holds, and memory for what is merged of them: so much of that seldom happens."""
    return min(num_rows * max_model_len, 4 * num_cache_tokens)


def run_sizes(max_rows: int) -> list[int]:
    """Rows of runs, ascending up to `max_rows`: so close that little is computed in vain."""
    sizes = (1, 2, 4, 8, 16, 24, 32, *range(48, 129, 16), *range(160, max_rows, 32))
    return [size for size in sizes if size < max_rows] + [max_rows]


def mixed_sizes(max_rows: int) -> list[tuple[int, int]]:
    """Tokens and rows of other steps, ascending. Always more tokens than rows, which tells them from runs."""
    rows = [size for size in _MIXED_ROWS if size < max_rows] + [max_rows]
    return [(tokens, size) for tokens in _MIXED_TOKENS for size in rows if size < tokens]


def graph_bytes(model: ModelConfig, dtype: torch.dtype, max_num_seqs: int, num_cache_tokens: int) -> int:
    """What captured steps take, about: the memory of the largest, which all share, and their kernels.

    Layers with another window have memory of their own for what is merged."""
    num_graphs = len(run_sizes(max_num_seqs)) + len(mixed_sizes(max_num_seqs))
    num_chunks = max_context(max_num_seqs, model.max_model_len, num_cache_tokens) // CHUNK_TOKENS + max_num_seqs
    merged = num_chunks * model.num_heads * (model.head_dim + 2) * 4 * len(set(model.windows))
    largest = workspace_bytes(model, dtype, max(MAX_TOKENS, max_num_seqs), max_num_seqs)
    return largest + merged + num_graphs * model.num_layers * _LAYER_BYTES
