"""CPU kernels on SmolLM2-135M's shapes beside PyTorch's own: GB/s where memory decides, GFLOP/s where arithmetic does.

    python -m bench.kernels_cpu [--threads N] [--repeat N]

Each figure is the best of its repeats, on weights too large together for the caches: this measures a machine that
others use as well, and the best is what they disturb least.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from bench.engine import model_config
from bench.workload import PRESETS
from worker import _core
from worker.ops.attention import AttentionBatch, paged_attention
from worker.ops.linear import Linear
from worker.weights.loader import random_model

HIDDEN, INTERMEDIATE, VOCABULARY, LAYERS = 576, 1536, 49152, 30
HEADS, KV_HEADS, HEAD_DIM, BLOCK = 9, 3, 64, 16
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
# Outputs and depth of a layer's products.
SHAPES = {
    "qkv": (QKV, HIDDEN),
    "o": (HIDDEN, HIDDEN),
    "gate_up": (2 * INTERMEDIATE, HIDDEN),
    "down": (HIDDEN, INTERMEDIATE),
}
DTYPE = torch.bfloat16


def best_seconds(run: Callable[[], object], repeat: int) -> float:
    """The shortest of `repeat` runs, after one that does not count."""
    run()
    best = float("inf")
    for _ in range(repeat):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best


def bench_linear(repeat: int) -> None:
    print(
        f"\n{'linear, bf16':<16}{'T':>5}{'ms':>9}{'GB/s':>8}{'GFLOP/s':>9}   torch: {'ms':>7}{'GB/s':>8}{'GFLOP/s':>9}"
    )
    shapes = {**SHAPES, "head": (VOCABULARY, HIDDEN)}
    for name, (num_outputs, depth) in shapes.items():
        copies = 1 if name == "head" else LAYERS
        weights = [torch.randn(num_outputs, depth, dtype=DTYPE) for _ in range(copies)]
        packed = [Linear(weight) for weight in weights]
        for num_tokens in (1, 8, 16, 64, 512) if name != "head" else (1, 8, 16):
            x = torch.randn(num_tokens, depth, dtype=DTYPE)
            out_dtype = torch.float32 if name == "head" else None

            def ours(x: Tensor = x, packed: list[Linear] = packed, out_dtype: torch.dtype | None = out_dtype) -> None:
                for one in packed:
                    one(x, out_dtype)

            def peers(x: Tensor = x, weights: list[Tensor] = weights) -> None:
                for weight in weights:
                    functional.linear(x, weight)

            line = f"{name:<16}{num_tokens:>5}"
            for run in (ours, peers):
                seconds = best_seconds(run, repeat if num_tokens < 512 else max(2, repeat // 4)) / copies
                gb = num_outputs * depth * 2 / seconds / 1e9
                gflop = 2 * num_tokens * num_outputs * depth / seconds / 1e9
                line += f"{seconds * 1e3:>9.3f}{gb:>8.1f}{gflop:>9.0f}" + ("        " if run is ours else "")
            print(line)


class Cache:
    """One sequence per row, its blocks shuffled over a cache per layer."""

    def __init__(self, context_lens: list[int], query_lens: list[int]) -> None:
        per_sequence = -(-max(context_lens) // BLOCK)
        num_blocks = per_sequence * len(context_lens)
        shape = (num_blocks, KV_HEADS, BLOCK, HEAD_DIM)
        self.layers = [(torch.randn(shape).to(DTYPE), torch.randn(shape).to(DTYPE)) for _ in range(LAYERS)]
        tables = torch.randperm(num_blocks).view(len(context_lens), per_sequence).to(torch.int32)
        slots, positions, starts = [], [], [0]
        for b, (context_len, query_len) in enumerate(zip(context_lens, query_lens, strict=True)):
            at = torch.arange(context_len - query_len, context_len)
            positions.append(at)
            slots.append(tables[b, at // BLOCK].long() * BLOCK + at % BLOCK)
            starts.append(starts[-1] + query_len)
        self.positions = torch.cat(positions)
        self.batch = AttentionBatch(
            torch.tensor(starts, dtype=torch.int32), torch.tensor(context_lens, dtype=torch.int32), tables,
            torch.cat(slots),
        )  # fmt: skip
        self.bytes = sum(context_lens) * KV_HEADS * HEAD_DIM * 2 * 2
        # Every query sees the keys up to its own position; two products of D multiply-adds a key and head.
        self.flop = int((self.positions + 1).sum()) * HEADS * HEAD_DIM * 4


def bench_attention(repeat: int) -> None:
    print(
        f"\n{'attention, bf16':<22}{'ms':>9}{'GB/s':>8}{'GFLOP/s':>9}   torch SDPA, contiguous: {'ms':>7}{'GFLOP/s':>9}"
    )
    cases = {
        "decode 1 x 256": ([256], [1]), "decode 1 x 1k": ([1024], [1]), "decode 8 x 1k": ([1024] * 8, [1] * 8),
        "decode 16 x 256": ([256] * 16, [1] * 16), "prefill 512": ([512], [512]), "prefill 2k": ([2048], [2048]),
        "chunk 256 of 2k": ([2048], [256]),
    }  # fmt: skip
    for name, (context_lens, query_lens) in cases.items():
        cache = Cache(context_lens, query_lens)
        q = torch.randn(sum(query_lens), HEADS, HEAD_DIM, dtype=DTYPE)

        def ours(q: Tensor = q, cache: Cache = cache) -> None:
            for k_cache, v_cache in cache.layers:
                paged_attention(q, k_cache, v_cache, cache.batch, HEAD_DIM**-0.5)

        seconds = best_seconds(ours, repeat) / LAYERS
        line = f"{name:<22}{seconds * 1e3:>9.3f}{cache.bytes / seconds / 1e9:>8.1f}{cache.flop / seconds / 1e9:>9.0f}"
        if len(context_lens) == 1 and context_lens == query_lens:
            heads = torch.randn(1, HEADS, context_lens[0], HEAD_DIM, dtype=DTYPE)

            def peer(heads: Tensor = heads) -> None:
                functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)

            seconds = best_seconds(peer, repeat)
            line += f"{'':24}{seconds * 1e3:>9.3f}{cache.flop / seconds / 1e9:>9.0f}"
        print(line)


def bench_model(repeat: int) -> None:
    """The decoder with Python between the kernels, without an executor."""
    # As in the engine: torch's own threads would wait actively for work while the kernels' need the CPUs.
    torch.set_num_threads(1)
    print(f"\n{'whole model':<22}{'ms a step':>11}{'tokens/s':>10}")
    model = random_model(model_config(PRESETS["tiny"]), DTYPE, torch.device("cpu"), seed=0)
    cases = {
        "decode b1, ctx 1": ([1], [1]), "decode b1, ctx 256": ([256], [1]), "decode b1, ctx 1k": ([1024], [1]),
        "decode b8, ctx 256": ([256] * 8, [1] * 8), "decode b16, ctx 256": ([256] * 16, [1] * 16),
        "prefill 512": ([512], [512]),
    }  # fmt: skip
    for name, (context_lens, query_lens) in cases.items():
        cache = Cache(context_lens, query_lens)
        num_tokens = sum(query_lens)
        token_ids = torch.randint(VOCABULARY, (num_tokens,))
        rows = cache.batch.query_starts[1:].long() - 1

        def step(token_ids: Tensor = token_ids, cache: Cache = cache, rows: Tensor = rows) -> None:
            model.forward(token_ids, cache.positions, cache.layers, cache.batch, rows)

        seconds = best_seconds(step, repeat)
        print(f"{name:<22}{seconds * 1e3:>11.2f}{num_tokens / seconds:>10.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=_core.num_threads())
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--only", choices=("linear", "attention", "model"))
    arguments = parser.parse_args()
    _core.set_num_threads(arguments.threads)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(f"instruction set {_core.isa()}, {_core.num_threads()} threads, torch {torch.__version__}")
    with torch.inference_mode():
        for name, bench in {"linear": bench_linear, "attention": bench_attention, "model": bench_model}.items():
            if arguments.only in (None, name):
                bench(arguments.repeat)


if __name__ == "__main__":
    main()
