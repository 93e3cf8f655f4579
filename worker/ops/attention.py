"""Paged attention and KV writes over blocks [N, G, S, D]. Knows no layers, no sequences' text, no pool.

Dim letters: B sequences, T tokens in the batch, H query heads, G KV heads, D head size, N blocks, S slots per block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Where the T tokens of a step stand. Tensors live on the cache's device.

    Query token i of sequence b is token query_starts[b] + i of the batch and stands at position
    context_lens[b] - (query_starts[b + 1] - query_starts[b]) + i; it sees positions up to its own.
    """

    query_starts: Tensor  # int32 [B + 1], cumulative query tokens
    context_lens: Tensor  # int32 [B], tokens in the KV cache, this step's included
    block_tables: Tensor  # int32 [B, max_blocks]; entries past a sequence's context are not read
    slots: Tensor  # int64 [T], block * S + offset of each token


def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, scale: float) -> Tensor:
    """Causal attention of q [T, H, D] over k_cache, v_cache [N, G, S, D] -> [T, H, D].

    Decode steps and prefill chunks mix freely. Positions at or past a sequence's context are never read.
    """
    return paged_attention_reference(q, k_cache, v_cache, batch, scale)


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Writes k, v [T, G, D] into k_cache, v_cache [N, G, S, D] at `slots` [T] (block * S + offset)."""
    write_kv_reference(k, v, k_cache, v_cache, slots)


def paged_attention_reference(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, scale: float
) -> Tensor:
    """The twin of `paged_attention`: one softmax over the gathered keys of each sequence, in float32 or wider."""
    _, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = k_cache.shape
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    starts = batch.query_starts.tolist()
    for b, context_len in enumerate(batch.context_lens.tolist()):
        begin, end = starts[b], starts[b + 1]
        if begin == end:
            continue
        blocks = batch.block_tables[b, : -(-context_len // block_size)].long()

        def gather(cache: Tensor, blocks: Tensor = blocks, context_len: int = context_len) -> Tensor:
            pages = cache[blocks].transpose(1, 2)  # [blocks, S, G, D]
            keys = pages.reshape(-1, num_kv_heads, head_dim)[:context_len].to(wide)
            return keys.repeat_interleave(num_heads // num_kv_heads, dim=1)  # [context, H, D]

        positions = torch.arange(context_len - (end - begin), context_len, device=q.device)
        hidden = torch.arange(context_len, device=q.device)[None, :] > positions[:, None]
        scores = torch.einsum("qhd,khd->hqk", q[begin:end].to(wide), gather(k_cache)) * scale
        scores = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        out[begin:end] = torch.einsum("hqk,khd->qhd", scores, gather(v_cache)).to(q.dtype)
    return out


def write_kv_reference(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """The twin of `write_kv`."""
    block_size = k_cache.shape[2]
    blocks = torch.div(slots, block_size, rounding_mode="floor")
    offsets = slots - blocks * block_size
    k_cache[blocks, :, offsets] = k
    v_cache[blocks, :, offsets] = v
