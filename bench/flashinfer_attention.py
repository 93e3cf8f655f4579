"""FlashInfer's paged attention on the tensors that ours takes: a peer, where it is installed. Knows no timing.

It builds its kernels when they are first asked for, which takes minutes for each dtype and head size.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from worker.ops.attention import AttentionBatch, paged_attention

# What its split sequences are merged in.
WORKSPACE_BYTES = 256 << 20
HEADS_FIRST = "HND"  # its name for blocks [G, S, D]


def flashinfer_calls(
    q: Tensor, caches: Sequence[tuple[Tensor, Tensor]], batch: AttentionBatch, scale: float
) -> list[Callable[[], Tensor]] | None:
    """A call for each cache, for the result of `paged_attention`; planned once, so that they can be captured.

    None where it is not installed, or has no kernels for this or other results; why is written to standard error.
    """
    try:
        flashinfer: Any = importlib.import_module("flashinfer")
    except ImportError:
        return None
    try:
        wrapper = _planned(flashinfer, q, caches[0][0], batch, scale)
        out = wrapper.run(q, caches[0])
        torch.testing.assert_close(out, paged_attention(q, *caches[0], batch, scale), atol=2e-2, rtol=2e-2)
    except Exception as error:  # whatever it raises; without a compiler, for one
        sys.stderr.write(f"flashinfer: {type(error).__name__}: {str(error).strip()[:200].splitlines()[:1]}\n")
        return None
    return [lambda cache=cache: wrapper.run(q, cache) for cache in caches]  # type: ignore[misc]


def _planned(flashinfer: Any, q: Tensor, k_cache: Tensor, batch: AttentionBatch, scale: float) -> Any:
    _, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = k_cache.shape
    # Its tables have no holes: the blocks of all sequences, one behind the other.
    lengths = batch.context_lens.cpu()
    counts = (lengths + block_size - 1) // block_size
    starts = torch.cat((torch.zeros(1, dtype=torch.int32), counts.cumsum(0).to(torch.int32)))
    blocks = torch.cat([table[:count] for table, count in zip(batch.block_tables, counts.tolist(), strict=True)])
    last_lengths = (lengths - 1) % block_size + 1
    of_sequences = starts.to(q.device), blocks, last_lengths.to(torch.int32).to(q.device)
    heads = num_heads, num_kv_heads, head_dim
    settings = {"q_data_type": q.dtype, "kv_data_type": k_cache.dtype, "sm_scale": scale}
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
    if q.shape[0] == len(lengths):
        # By its own word: tensor cores are faster where heads share keys.
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace, HEADS_FIRST, use_tensor_cores=num_heads > num_kv_heads
        )
        wrapper.plan(*of_sequences, *heads, block_size, **settings)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, HEADS_FIRST)
        wrapper.plan(batch.query_starts, *of_sequences, *heads, block_size, causal=True, **settings)
    return wrapper
