"""CUDA kernels on the shapes of models, each beside its floor and what PyTorch does for the same result.

    python -m bench.kernels [--only SUITE] [--copy-rate GB/S] [--out FILE.json]

Calls are captured in a graph and replayed, so that only the GPU's time counts, over inputs too large together for its
L2. Each figure is the median of its replays. `roof` is the share of the rate of a large copy, which is measured first.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from worker.model.config import RopeConfig
from worker.model.rope import cos_sin_table
from worker.ops.activation import silu_mul, silu_mul_reference
from worker.ops.attention import write_kv_reference
from worker.ops.block_copy import BlockTensors, copy_blocks, copy_blocks_reference
from worker.ops.heads import place_heads
from worker.ops.linear import Linear, linear_reference
from worker.ops.logprobs import logprobs
from worker.ops.norm import rms_norm, rms_norm_reference
from worker.ops.penalties import Penalties, PenaltyCounts, PenaltyRow, count_drawn, penalize, penalize_reference
from worker.ops.rope import apply_rope_reference
from worker.ops.sampler import SamplingRows, sample_packed, sample_reference

Call = Callable[[], object]

GPU = torch.device("cuda")
DTYPE = torch.bfloat16
# Of Llama-3-8B.
HIDDEN, INTERMEDIATE, VOCABULARY, LAYERS = 4096, 14336, 128256, 32
HEADS, KV_HEADS, HEAD_DIM, BLOCK = 32, 8, 128, 16
# [N_out, K] of its products.
PRODUCTS = {
    "qkv": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
    "output": (HIDDEN, HEADS * HEAD_DIM),
    "gate_up": (2 * INTERMEDIATE, HIDDEN),
    "down": (HIDDEN, INTERMEDIATE),
    "head": (VOCABULARY, HIDDEN),
}
# Bytes of inputs that no L2 holds, and the most sets of them.
COLD_BYTES, MAX_SETS = 512 << 20, 64


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `rate` is in GB/s or TFLOP/s; peers are in microseconds."""

    kernel: str
    shape: str
    us: float
    rate: float
    unit: str
    roof: float  # share of what the machine can do
    peers: dict[str, float]


def num_sets(num_bytes: int) -> int:
    """How many sets of inputs of this size are cold when their turn comes again."""
    return max(2, min(MAX_SETS, -(-COLD_BYTES // max(1, num_bytes))))


def microseconds(calls: Sequence[Call], replays: int = 15) -> float:
    """Of one call; `calls` do the same on different memory. They must not wait for the GPU."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return timed(graph.replay, replays) / len(calls)


def timed(call: Call, repeat: int = 15) -> float:
    """Microseconds of the GPU for one call, which may wait for it."""
    call()
    times = []
    for _ in range(repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return float(median(times))


def copy_rate() -> float:
    """GB/s of a large copy on the GPU, reads and writes counted: the roof of what memory decides."""
    source = torch.randint(0, 255, (2 << 30,), dtype=torch.uint8, device=GPU)
    target = torch.empty_like(source)
    return 2 * source.numel() / timed(lambda: target.copy_(source)) / 1e3


def memory_row(kernel: str, shape: str, num_bytes: int, us: float, roof: float, **peers: float) -> Row:
    """A line for a kernel that memory decides; it moves at least `num_bytes`."""
    rate = num_bytes / us / 1e3
    return Row(kernel, shape, us, rate, "GB/s", rate / roof, peers)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, device=GPU, dtype=DTYPE)


def bench_norm(roof: float) -> list[Row]:
    """RMSNorm with a residual sum."""
    rows, weight = [], randn(HIDDEN)
    for num_tokens in (1, 32, 256, 8192):
        num_bytes = 4 * num_tokens * HIDDEN * 2
        inputs = [(randn(num_tokens, HIDDEN), randn(num_tokens, HIDDEN)) for _ in range(num_sets(num_bytes))]
        us = microseconds([lambda x=x, r=r: rms_norm(x, weight, 1e-5, r) for x, r in inputs])  # type: ignore[misc]
        torch_us = microseconds(
            [lambda x=x, r=r: rms_norm_reference(x, weight, 1e-5, r) for x, r in inputs]  # type: ignore[misc]
        )
        rows.append(memory_row("rms_norm", f"T={num_tokens} D={HIDDEN}", num_bytes, us, roof, torch=torch_us))
    return rows


def bench_heads(roof: float) -> list[Row]:
    """Norms, rotation and KV write in one."""
    rows, width = [], HEADS + 2 * KV_HEADS
    cos_sin = cos_sin_table(RopeConfig(500000.0), HEAD_DIM, 8192, GPU)
    norms = (randn(HEAD_DIM), randn(HEAD_DIM))
    for num_tokens in (1, 32, 256, 8192):
        num_bytes = 2 * num_tokens * width * HEAD_DIM * 2
        num_blocks = num_tokens // BLOCK + 1
        positions = torch.arange(num_tokens, device=GPU) % 8192
        slots = torch.randperm(num_blocks * BLOCK, device=GPU)[:num_tokens]
        inputs = []
        for _ in range(num_sets(num_bytes)):
            fused = randn(num_tokens, width, HEAD_DIM).split_with_sizes((HEADS, KV_HEADS, KV_HEADS), dim=1)
            caches = [randn(num_blocks, KV_HEADS, BLOCK, HEAD_DIM) for _ in range(2)]
            inputs.append((*fused, *caches))

        def of_torch(q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
            q, k = rms_norm_reference(q, norms[0], 1e-6), rms_norm_reference(k, norms[1], 1e-6)
            apply_rope_reference(q, k, positions, cos_sin)  # noqa: B023 - called in this round
            write_kv_reference(k, v, k_cache, v_cache, slots)  # noqa: B023

        def ours(q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
            place_heads(q, k, v, norms, 1e-6, positions, cos_sin, k_cache, v_cache, slots)  # noqa: B023

        us = microseconds([lambda i=i: ours(*i) for i in inputs])  # type: ignore[misc]
        torch_us = microseconds([lambda i=i: of_torch(*i) for i in inputs])  # type: ignore[misc]
        rows.append(
            memory_row(
                "place_heads", f"T={num_tokens} {HEADS}/{KV_HEADS}x{HEAD_DIM}", num_bytes, us, roof, torch=torch_us
            )
        )
    return rows


def bench_activation(roof: float) -> list[Row]:
    """SiLU of the gate times up."""
    rows = []
    for num_tokens in (1, 32, 256, 8192):
        num_bytes = 3 * num_tokens * INTERMEDIATE * 2
        inputs = [randn(num_tokens, 2 * INTERMEDIATE) for _ in range(num_sets(num_bytes))]
        us = microseconds([lambda x=x: silu_mul(x) for x in inputs])  # type: ignore[misc]
        torch_us = microseconds([lambda x=x: silu_mul_reference(x) for x in inputs])  # type: ignore[misc]
        rows.append(memory_row("silu_mul", f"T={num_tokens} I={INTERMEDIATE}", num_bytes, us, roof, torch=torch_us))
    return rows


def bench_linear(roof: float) -> list[Row]:
    """Products of few rows; the floor is one read of the weight."""
    rows = []
    for name, (num_outputs, depth) in PRODUCTS.items():
        num_bytes = num_outputs * depth * 2
        weights = [randn(num_outputs, depth) for _ in range(max(3, num_sets(num_bytes)))]
        linears = [Linear(weight) for weight in weights]
        out_dtype = torch.float32 if name == "head" else DTYPE
        for num_tokens in (1, 8, 32, 64):
            x = randn(num_tokens, depth)
            us = microseconds([lambda n=n, x=x, d=out_dtype: n(x, d) for n in linears])  # type: ignore[misc]
            torch_us = microseconds([lambda w=w, x=x: linear_reference(x, w) for w in weights])  # type: ignore[misc]
            rows.append(memory_row(f"linear {name}", f"T={num_tokens}", num_bytes, us, roof, torch=torch_us))
    return rows


def bench_block_copy(roof: float) -> list[Row]:
    """Blocks of all layers: within the GPU, and to and from pinned memory, whose roof is the bus and not known here."""
    shape = (256, KV_HEADS, BLOCK, HEAD_DIM)
    on_gpu = BlockTensors([randn(*shape) for _ in range(2 * LAYERS)])
    on_host = BlockTensors([torch.empty(shape, dtype=DTYPE, pin_memory=True) for _ in range(2 * LAYERS)])
    rows = []
    for name, source, target, count in (
        ("gpu to gpu", on_gpu, on_gpu, 1),
        ("gpu to gpu", on_gpu, on_gpu, 128),
        ("gpu to host", on_gpu, on_host, 128),
        ("host to gpu", on_host, on_gpu, 128),
    ):
        num_bytes = (2 if target is source else 1) * count * 2 * LAYERS * on_gpu.block_bytes
        sources, targets = list(range(count)), list(range(255, 255 - count, -1))
        args = (source, target, sources, targets)
        us = timed(lambda args=args: copy_blocks(*args))  # type: ignore[misc]
        torch_us = timed(lambda args=args: copy_blocks_reference(*args), 3)  # type: ignore[misc]
        rows.append(memory_row(f"copy {name}", f"{count} blocks x {2 * LAYERS}", num_bytes, us, roof, torch=torch_us))
    return rows


def bench_sampler(roof: float) -> list[Row]:
    """Choosing tokens; the floor is one read of the logits."""
    rows = []
    for num_rows in (1, 8, 32, 128):
        num_bytes = 4 * num_rows * VOCABULARY
        sets = [torch.randn(num_rows, VOCABULARY, device=GPU) * 3 for _ in range(min(8, num_sets(num_bytes)))]
        for name, temperature, top_k, top_p in (
            ("greedy", 0.0, 0, 1.0),
            ("plain", 1.0, 0, 1.0),
            ("T=0.7", 0.7, 0, 1.0),
            ("top-k 50", 1.0, 50, 1.0),
            ("top-p 0.95", 1.0, 0, 0.95),
            ("both", 0.7, 50, 0.95),
        ):
            settings = SamplingRows(
                temperature=np.full(num_rows, temperature, np.float32), top_k=np.full(num_rows, top_k, np.int32),
                top_p=np.full(num_rows, top_p, np.float32), min_p=np.zeros(num_rows, np.float32),
                seed=np.arange(num_rows, dtype=np.uint64), position=np.arange(num_rows, dtype=np.int64),
            )  # fmt: skip
            params = torch.from_numpy(settings.packed()).to(GPU)
            us = microseconds([lambda x=x, p=params: sample_packed(x, p) for x in sets])  # type: ignore[misc]
            torch_us = timed(lambda x=sets[0], s=settings: sample_reference(x, s), 3)  # type: ignore[misc]
            rows.append(
                memory_row(f"sample {name}", f"B={num_rows} V={VOCABULARY}", num_bytes, us, roof, torch=torch_us)
            )
    return rows


def bench_penalties(roof: float) -> list[Row]:
    """Penalties of rows that list 1,200 tokens, or allow ten alone; then counting what was drawn."""
    rows, rng = [], np.random.default_rng(0)
    for num_rows in (1, 128):
        listed = rng.integers(0, VOCABULARY, (num_rows, 1200)).tolist()
        settings = [PenaltyRow(1.2, 0.5, 0.1, prompt_ids=ids[200:], drawn_ids=ids[:200]) for ids in listed]
        penalties = Penalties.of([PenaltyCounts(row, VOCABULARY) for row in settings], VOCABULARY, 1, GPU)
        few = PenaltyCounts(PenaltyRow(allowed_ids=range(10)), VOCABULARY)
        masked = Penalties.of([few] * num_rows, VOCABULARY, 0, GPU)
        sets = [torch.randn(num_rows, VOCABULARY, device=GPU) for _ in range(4)]
        token_ids = torch.tensor([ids[0] for ids in listed], device=GPU)
        shape = f"B={num_rows} V={VOCABULARY}"
        for name, which, num_bytes in (
            ("penalize", penalties, num_rows * 1200 * 24),
            ("penalize, mask", masked, num_rows * VOCABULARY * 4),
        ):
            us = microseconds([lambda x=x, which=which: penalize(x, which) for x in sets])  # type: ignore[misc]
            torch_us = timed(lambda x=sets[0], which=which: penalize_reference(x, which), 3)  # type: ignore[misc]
            rows.append(memory_row(name, shape, num_bytes, us, roof, torch=torch_us))
        us = microseconds([lambda p=penalties, t=token_ids: count_drawn(p, t)] * 4)  # type: ignore[misc]
        rows.append(memory_row("count_drawn", shape, num_rows * 1200 * 16, us, roof))
    return rows


def bench_logprobs(roof: float) -> list[Row]:
    """Logprobs of the chosen token and the likeliest ones; the floor is one read of the logits."""
    rows = []
    for num_rows in (1, 8, 32, 128):
        num_bytes = 4 * num_rows * VOCABULARY
        sets = [torch.randn(num_rows, VOCABULARY, device=GPU) * 3 for _ in range(min(8, num_sets(num_bytes)))]
        chosen = torch.arange(num_rows, device=GPU)
        for count in (0, 20):
            num_top = torch.full((num_rows,), count, dtype=torch.int32, device=GPU)
            args = (chosen, num_top, count)
            us = microseconds([lambda x=x, args=args: logprobs(x, *args) for x in sets])  # type: ignore[misc]
            torch_us = microseconds([lambda x=x, n=count: x.log_softmax(1).topk(n) for x in sets])  # type: ignore[misc]
            shape = f"B={num_rows} V={VOCABULARY}"
            rows.append(memory_row(f"logprobs, top {count}", shape, num_bytes, us, roof, torch=torch_us))
    return rows


SUITES: dict[str, Callable[[float], list[Row]]] = {
    "norm": bench_norm,
    "heads": bench_heads,
    "activation": bench_activation,
    "linear": bench_linear,
    "block_copy": bench_block_copy,
    "sampler": bench_sampler,
    "penalties": bench_penalties,
    "logprobs": bench_logprobs,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the CUDA kernels.")
    parser.add_argument("--only", choices=SUITES, action="append", help="this suite alone; may be repeated")
    parser.add_argument("--copy-rate", type=float, help="GB/s of a large copy, if it is known")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    arguments = parser.parse_args()
    roof = arguments.copy_rate or copy_rate()
    print(f"{torch.cuda.get_device_name()}, a copy runs at {roof:,.0f} GB/s")
    print(f"{'kernel':<20}{'shape':<24}{'us':>10}{'rate':>10}{'':>8}{'roof':>6}   peers, us")
    rows = []
    for name in arguments.only or SUITES:
        for row in SUITES[name](roof):
            rows.append(row)
            peers = "  ".join(f"{peer} {us:,.1f}" for peer, us in row.peers.items())
            print(
                f"{row.kernel:<20}{row.shape:<24}{row.us:>10,.2f}{row.rate:>10,.0f} {row.unit:<7}{row.roof:>6.0%}"
                f"   {peers}", flush=True,
            )  # fmt: skip
        torch.cuda.empty_cache()
    if arguments.out:
        arguments.out.write_text(json.dumps({"copy_rate": roof, "rows": [asdict(row) for row in rows]}, indent=1))


if __name__ == "__main__":
    main()
