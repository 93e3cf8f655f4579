"""The CUDA kernels of a layer beside attention, on the shapes of Llama-3-8B."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.kernel_timing import DTYPE, GPU, Roofs, Row, memory_row, microseconds, num_sets, randn, timed
from worker.model.config import RopeConfig
from worker.model.rope import cos_sin_table
from worker.ops.activation import gate_mul, gate_mul_reference
from worker.ops.block_copy import BlockTensors, copy_blocks, copy_blocks_reference
from worker.ops.heads import place_heads
from worker.ops.linear import Linear, linear_reference
from worker.ops.norm import rms_norm, rms_norm_reference
from worker.ops.rope import apply_rope_reference

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


def bench_norm(roofs: Roofs) -> list[Row]:
    """RMSNorm with a residual sum."""
    rows, weight = [], randn(HIDDEN)
    for num_tokens in (1, 32, 256, 8192):
        num_bytes = 4 * num_tokens * HIDDEN * 2
        inputs = [(randn(num_tokens, HIDDEN), randn(num_tokens, HIDDEN)) for _ in range(num_sets(num_bytes))]
        us = microseconds([lambda x=x, r=r: rms_norm(x, weight, 1e-5, r) for x, r in inputs])  # type: ignore[misc]
        torch_us = microseconds(
            [lambda x=x, r=r: rms_norm_reference(x, weight, 1e-5, r) for x, r in inputs]  # type: ignore[misc]
        )
        rows.append(memory_row("rms_norm", f"T={num_tokens} D={HIDDEN}", num_bytes, us, roofs, torch=torch_us))
    return rows


def bench_heads(roofs: Roofs) -> list[Row]:
    """Norms, rotation and KV write in one."""
    rows, width = [], HEADS + 2 * KV_HEADS
    cos_sin = cos_sin_table(RopeConfig(500000.0), HEAD_DIM, 8192, GPU)
    norms = (randn(HEAD_DIM), randn(HEAD_DIM))
    for num_tokens in (1, 32, 256, 8192):
        num_bytes = 2 * num_tokens * width * HEAD_DIM * 2
        num_blocks = num_tokens // BLOCK + 1
        positions = torch.arange(num_tokens, device=GPU) % 8192
        slots = torch.randperm(num_blocks * BLOCK, device=GPU)[:num_tokens]
        blocks, offsets = slots // BLOCK, slots % BLOCK
        inputs = []
        for _ in range(num_sets(num_bytes)):
            fused = randn(num_tokens, width, HEAD_DIM).split_with_sizes((HEADS, KV_HEADS, KV_HEADS), dim=1)
            caches = [randn(num_blocks, KV_HEADS, BLOCK, HEAD_DIM) for _ in range(2)]
            inputs.append((*fused, *caches))

        def of_torch(q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
            q, k = rms_norm_reference(q, norms[0], 1e-6), rms_norm_reference(k, norms[1], 1e-6)
            apply_rope_reference(q, k, positions, cos_sin)  # noqa: B023 - called in this round
            # Not `write_kv_reference`: a captured stream cannot wait to hear how many of the slots there are.
            k_cache[blocks, :, offsets], v_cache[blocks, :, offsets] = k, v  # noqa: B023

        def ours(q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
            place_heads(q, k, v, norms, 1e-6, positions, cos_sin, k_cache, v_cache, slots)  # noqa: B023

        us = microseconds([lambda i=i: ours(*i) for i in inputs])  # type: ignore[misc]
        torch_us = microseconds([lambda i=i: of_torch(*i) for i in inputs])  # type: ignore[misc]
        rows.append(
            memory_row(
                "place_heads", f"T={num_tokens} {HEADS}/{KV_HEADS}x{HEAD_DIM}", num_bytes, us, roofs, torch=torch_us
            )
        )
    return rows


def bench_activation(roofs: Roofs) -> list[Row]:
    """SiLU of the gate times up."""
    rows = []
    for num_tokens in (1, 32, 256, 8192):
        num_bytes = 3 * num_tokens * INTERMEDIATE * 2
        inputs = [randn(num_tokens, 2 * INTERMEDIATE) for _ in range(num_sets(num_bytes))]
        us = microseconds([lambda x=x: gate_mul(x) for x in inputs])  # type: ignore[misc]
        torch_us = microseconds([lambda x=x: gate_mul_reference(x) for x in inputs])  # type: ignore[misc]
        rows.append(memory_row("silu_mul", f"T={num_tokens} I={INTERMEDIATE}", num_bytes, us, roofs, torch=torch_us))
    return rows


def bench_linear(roofs: Roofs) -> list[Row]:
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
            rows.append(memory_row(f"linear {name}", f"T={num_tokens}", num_bytes, us, roofs, torch=torch_us))
    return rows


def bench_block_copy(roofs: Roofs) -> list[Row]:
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
        rows.append(memory_row(f"copy {name}", f"{count} blocks x {2 * LAYERS}", num_bytes, us, roofs, torch=torch_us))
    return rows
