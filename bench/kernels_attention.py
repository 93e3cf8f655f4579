"""Attention kernels on a GPU beside their rooflines and torch's own attention, which reads keys without pages.

python -m bench.kernels_attention
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from worker.ops.attention import AttentionBatch, paged_attention
from worker.ops.dtypes import FP8

# What an H200 was measured to copy, and to multiply in bfloat16.
COPY_BYTES_PER_S = 4.3e12
FLOP_PER_S = 790e12
# More than any cache: calls in turn read other tensors.
ROTATED_BYTES = 600 << 20
BLOCK_SIZE = 64
CALLS_PER_GRAPH = 20


@dataclass(frozen=True, slots=True)
class Case:
    """Sequences of one length in one layer: `num_queries` tokens of each at its end."""

    name: str
    num_sequences: int
    context_len: int
    num_queries: int
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    cache_dtype: torch.dtype = torch.bfloat16

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


CASES = [
    Case("decode 8b 64x512", 64, 512, 1),
    Case("decode 8b 256x512", 256, 512, 1),
    Case("decode 8b 64x2048", 64, 2048, 1),
    Case("decode 8b 32x512", 32, 512, 1),
    Case("decode 8b 8x512", 8, 512, 1),
    Case("decode 8b 1x512", 1, 512, 1),
    Case("decode 8b 8x2048", 8, 2048, 1),
    Case("decode 8b 1x2048", 1, 2048, 1),
    Case("decode 8b 1x8192", 1, 8192, 1),
    Case("decode 8b 8x16384", 8, 16384, 1),
    Case("decode 8b 32x8192", 32, 8192, 1),
    Case("decode 1b 64x512", 64, 512, 1, 32, 8, 64),
    Case("decode 1b 64x2048", 64, 2048, 1, 32, 8, 64),
    Case("decode qwen2.5-7b 64x2048", 64, 2048, 1, 28, 4, 128),
    Case("decode smollm2 64x2048", 64, 2048, 1, 9, 3, 64),
    Case("decode d256 g2 64x2048", 64, 2048, 1, 8, 4, 256),
    Case("decode fp8 8b 1x512", 1, 512, 1, cache_dtype=FP8),
    Case("decode fp8 8b 32x512", 32, 512, 1, cache_dtype=FP8),
    Case("decode fp8 8b 64x2048", 64, 2048, 1, cache_dtype=FP8),
    Case("decode fp8 8b 1x8192", 1, 8192, 1, cache_dtype=FP8),
    Case("decode fp8 8b 8x16384", 8, 16384, 1, cache_dtype=FP8),
    Case("decode fp8 8b 32x8192", 32, 8192, 1, cache_dtype=FP8),
    Case("decode fp8 1b 64x2048", 64, 2048, 1, 32, 8, 64, FP8),
    Case("prefill 8b 1x4096", 1, 4096, 4096),
    Case("prefill 8b 4x2048", 4, 2048, 2048),
    Case("prefill 8b 1x512", 1, 512, 512),
    Case("prefill 8b 512 of 8192", 1, 8192, 512),
    Case("prefill 8b 2048 of 16384", 1, 16384, 2048),
    Case("prefill 1b 1x4096", 1, 4096, 4096, 32, 8, 64),
    Case("prefill d256 1x4096", 1, 4096, 4096, 8, 4, 256),
    Case("prefill fp8 8b 1x4096", 1, 4096, 4096, cache_dtype=FP8),
    Case("prefill fp8 8b 2048 of 16384", 1, 16384, 2048, cache_dtype=FP8),
    Case("prefill fp8 1b 1x4096", 1, 4096, 4096, 32, 8, 64, FP8),
]


def seconds_per_call(call: Callable[[int], None], repeats: int = 9) -> float:
    """The median over replays of a graph of calls, call(i) being the i-th: no host in it."""
    for i in range(3):
        call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(CALLS_PER_GRAPH):
            call(i)
    times: list[float] = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / CALLS_PER_GRAPH)
    return statistics.median(times[1:])


def measure(case: Case, alone: bool) -> tuple[float, float | None]:
    """Seconds of ours and of torch's scaled_dot_product_attention, None where that takes no such call or `alone`."""
    torch.manual_seed(0)
    num_sets = max(1, -(-ROTATED_BYTES // case.kv_bytes)) if case.num_queries == 1 else 2
    num_sets = min(num_sets, CALLS_PER_GRAPH)
    blocks_each = -(-case.context_len // BLOCK_SIZE)
    num_blocks = case.num_sequences * blocks_each
    shape = (num_blocks, case.num_kv_heads, BLOCK_SIZE, case.head_dim)
    caches = [(_random(shape).to(case.cache_dtype), _random(shape).to(case.cache_dtype)) for _ in range(num_sets)]
    tables = torch.randperm(num_blocks, device="cuda").to(torch.int32).view(case.num_sequences, blocks_each)
    num_tokens = case.num_sequences * case.num_queries
    q = _random((num_tokens, case.num_heads, case.head_dim))
    batch = AttentionBatch(
        query_starts=torch.arange(0, num_tokens + 1, case.num_queries, dtype=torch.int32, device="cuda"),
        context_lens=torch.full((case.num_sequences,), case.context_len, dtype=torch.int32, device="cuda"),
        block_tables=tables,
        slots=torch.zeros(num_tokens, dtype=torch.int64, device="cuda"),
    )
    scale = case.head_dim**-0.5
    ours = seconds_per_call(lambda i: _keep(paged_attention(q, *caches[i % num_sets], batch, scale)))
    return ours, None if alone else _measure_torch(case, q, caches, num_sets)


def _random(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def _measure_torch(case: Case, q: Tensor, caches: list[tuple[Tensor, Tensor]], num_sets: int) -> float | None:
    queries = q.view(case.num_sequences, case.num_queries, case.num_heads, case.head_dim).transpose(1, 2)
    flat = (case.num_sequences, case.num_kv_heads, -1, case.head_dim)
    # The same numbers in another order: sequences without pages.
    keys = [(k.view(flat), v.view(flat)) for k, v in caches]
    if 1 < case.num_queries < case.context_len or case.cache_dtype is FP8:
        return None  # its causal mask starts at the first key, and it knows no cache of another dtype
    causal = case.num_queries > 1

    def call(i: int) -> None:
        k, v = keys[i % num_sets]
        _keep(functional.scaled_dot_product_attention(queries, k, v, is_causal=causal, enable_gqa=True))

    best = None
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        try:
            with sdpa_kernel(backend):
                seconds = seconds_per_call(call)
        except RuntimeError:
            continue
        best = seconds if best is None else min(best, seconds)
    return best


def _keep(result: Tensor) -> None:
    del result


def main() -> int:
    parser = argparse.ArgumentParser(description="Attention kernels on a GPU.")
    parser.add_argument("--alone", action="store_true", help="leave torch's attention out")
    parser.add_argument("prefix", nargs="?", default="", help="only cases whose names start with it")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("error: bench.kernels_attention needs a GPU\n")
        return 1
    print(f"{'case':<28}{'us':>9}{'TB/s':>7}{'TFLOP/s':>9}{'roofline':>10}{'torch us':>10}")
    for case in CASES:
        if not case.name.startswith(arguments.prefix):
            continue
        seconds, peer = measure(case, arguments.alone)
        floor = max(case.kv_bytes / COPY_BYTES_PER_S, case.flop / FLOP_PER_S)
        print(
            f"{case.name:<28}{seconds * 1e6:9.1f}{case.kv_bytes / seconds / 1e12:7.2f}{case.flop / seconds / 1e12:9.1f}"
            f"{floor / seconds:10.0%}" + (f"{'-':>10}" if peer is None else f"{peer * 1e6:10.1f}"),
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
