"""Paged attention on the shapes of models, beside torch's own, which reads keys without pages, and FlashInfer's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.flashinfer_attention import flashinfer_calls
from bench.kernel_timing import GPU, Roofs, Row, memory_row, microseconds, num_sets, product_row, randn
from worker.ops.attention import AttentionBatch, paged_attention
from worker.ops.dtypes import FP8

BLOCK_SIZE = 64
# Calls that are timed together, so that launching the graph does not count.
CALLS = 20


@dataclass(frozen=True, slots=True)
class Case:
    """Sequences of one length in one layer: `num_queries` tokens of each at its end."""

    model: str
    num_sequences: int
    context_len: int
    num_queries: int
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    cache_dtype: torch.dtype = torch.bfloat16

    @property
    def shape(self) -> str:
        queries = "" if self.num_queries == 1 else f"{self.num_queries} of "
        cache = ", fp8" if self.cache_dtype is FP8 else ""
        return f"{self.model} {self.num_sequences} x {queries}{self.context_len}{cache}"

    @property
    def kv_bytes(self) -> int:
        """What must be read of K and V."""
        elements = self.num_sequences * self.context_len * self.num_kv_heads * self.head_dim
        return 2 * elements * self.cache_dtype.itemsize

    @property
    def flop(self) -> int:
        """Of both products, what the causal mask hides left out."""
        seen = sum(range(self.context_len - self.num_queries + 1, self.context_len + 1))
        return 4 * self.num_sequences * seen * self.num_heads * self.head_dim


OF_1B, OF_QWEN, OF_SMOLLM, OF_256 = (32, 8, 64), (28, 4, 128), (9, 3, 64), (8, 4, 256)
DECODE = [
    *(Case("8b", n, 512, 1) for n in (1, 8, 32, 64, 256)),
    *(Case("8b", n, 2048, 1) for n in (1, 8, 64)),
    Case("8b", 1, 8192, 1),
    Case("8b", 8, 16384, 1),
    Case("8b", 32, 8192, 1),
    Case("1b", 64, 512, 1, *OF_1B),
    Case("1b", 64, 2048, 1, *OF_1B),
    Case("qwen2.5-7b", 64, 2048, 1, *OF_QWEN),
    Case("smollm2", 64, 2048, 1, *OF_SMOLLM),
    Case("8/4x256", 64, 2048, 1, *OF_256),
    *(Case("8b", *shape, 1, cache_dtype=FP8) for shape in ((1, 512), (32, 512), (64, 2048))),
    *(Case("8b", *shape, 1, cache_dtype=FP8) for shape in ((1, 8192), (8, 16384), (32, 8192))),
    Case("1b", 64, 2048, 1, *OF_1B, cache_dtype=FP8),
]
PREFILL = [
    Case("8b", 1, 4096, 4096),
    Case("8b", 4, 2048, 2048),
    Case("8b", 1, 512, 512),
    Case("8b", 1, 8192, 512),
    Case("8b", 1, 16384, 2048),
    Case("1b", 1, 4096, 4096, *OF_1B),
    Case("8/4x256", 1, 4096, 4096, *OF_256),
    Case("8b", 1, 4096, 4096, cache_dtype=FP8),
    Case("8b", 1, 16384, 2048, cache_dtype=FP8),
    Case("1b", 1, 4096, 4096, *OF_1B, cache_dtype=FP8),
]


def bench_decode(roofs: Roofs) -> list[Row]:
    """One token a sequence; the floor is one read of K and V."""
    rows = []
    for case in DECODE:
        us, peers = measure(case)
        rows.append(memory_row("attention, decode", case.shape, case.kv_bytes, us, roofs, **peers))
    return rows


def bench_prefill(roofs: Roofs) -> list[Row]:
    """Many tokens of a sequence; the floor is both products."""
    rows = []
    for case in PREFILL:
        us, peers = measure(case)
        rows.append(product_row("attention, prefill", case.shape, case.flop, us, roofs, **peers))
    return rows


def measure(case: Case) -> tuple[float, dict[str, float]]:
    """Microseconds of ours, and of the peers that take such a call."""
    torch.manual_seed(0)
    blocks_each = -(-case.context_len // BLOCK_SIZE)
    num_blocks = case.num_sequences * blocks_each
    shape = (num_blocks, case.num_kv_heads, BLOCK_SIZE, case.head_dim)
    caches = [
        (randn(*shape).to(case.cache_dtype), randn(*shape).to(case.cache_dtype))
        for _ in range(min(num_sets(case.kv_bytes), CALLS))
    ]
    turns = [caches[i % len(caches)] for i in range(CALLS)]
    num_tokens = case.num_sequences * case.num_queries
    q = randn(num_tokens, case.num_heads, case.head_dim)
    batch = AttentionBatch(
        query_starts=torch.arange(0, num_tokens + 1, case.num_queries, dtype=torch.int32, device=GPU),
        context_lens=torch.full((case.num_sequences,), case.context_len, dtype=torch.int32, device=GPU),
        block_tables=torch.randperm(num_blocks, device=GPU).to(torch.int32).view(case.num_sequences, blocks_each),
        slots=torch.zeros(num_tokens, dtype=torch.int64, device=GPU),
    )
    scale = case.head_dim**-0.5
    us = microseconds([lambda k=k, v=v: paged_attention(q, k, v, batch, scale) for k, v in turns])  # type: ignore[misc]
    peers = {"torch": of_torch(case, q, turns)}
    calls = flashinfer_calls(q, turns, batch, scale)
    if calls is not None:
        peers["flashinfer"] = microseconds(calls)
    return us, {name: taken for name, taken in peers.items() if taken is not None}


def of_torch(case: Case, q: Tensor, turns: list[tuple[Tensor, Tensor]]) -> float | None:
    """The better of its two fast ways; None where it takes no such call."""
    if 1 < case.num_queries < case.context_len or case.cache_dtype is FP8:
        return None  # its causal mask starts at the first key, and it knows no cache of another dtype
    queries = q.view(case.num_sequences, case.num_queries, case.num_heads, case.head_dim).transpose(1, 2)
    flat = (case.num_sequences, case.num_kv_heads, -1, case.head_dim)
    causal = case.num_queries > 1

    # The same numbers in another order: sequences without pages.
    def call(k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(
            queries, k.view(flat), v.view(flat), is_causal=causal, enable_gqa=True
        )

    best = None
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        try:
            with sdpa_kernel(backend):
                us = microseconds([lambda k=k, v=v: call(k, v) for k, v in turns])  # type: ignore[misc]
        except RuntimeError:
            continue
        best = us if best is None else min(best, us)
    return best
