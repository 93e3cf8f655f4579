"""Sequences on a GPU, for tests of the attention kernels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.worker.test_attention import Sequences, make_sequences
from worker.ops.attention import UNSCALED, AttentionBatch, paged_attention, paged_attention_reference
from worker.ops.dtypes import FP8
from worker.ops.step_attention import serves_fp8

needs_fp8 = pytest.mark.skipif(
    not (torch.cuda.is_available() and serves_fp8(torch.device("cuda"), 128, 64)), reason="needs a Hopper GPU"
)

HALVES = [torch.bfloat16, torch.float16]
DTYPES = [*HALVES, torch.float32]
Chunk = tuple[int, int, int]  # sequence, first position, position past the last


def on_gpu(batch: AttentionBatch) -> AttentionBatch:
    # As the executor does: what it knows bounds memory and launches.
    return AttentionBatch(
        batch.query_starts.cuda(),
        batch.context_lens.cuda(),
        batch.block_tables.cuda(),
        batch.slots.cuda(),
        int(batch.context_lens.sum()),
        int((batch.query_starts.diff() > 1).sum()),
    )


class OnGpu:
    """Sequences whose cache was copied to the GPU once: as it is, or as float8 with scales."""

    def __init__(self, sequences: Sequences, fp8: bool = False) -> None:
        self.sequences = sequences
        self.k_cache, self.v_cache = sequences.k_cache.cuda(), sequences.v_cache.cuda()
        self.kv_scales = UNSCALED
        if fp8:
            assert serves_fp8(self.k_cache.device, self.k_cache.shape[3], self.k_cache.shape[2])
            self.kv_scales = 0.5, 2.0
            self.k_cache, self.v_cache = (self.k_cache.float() / 0.5).to(FP8), (self.v_cache.float() / 2.0).to(FP8)

    def run(self, q: Tensor, batch: AttentionBatch, scale: float) -> Tensor:
        return paged_attention(q.cuda(), self.k_cache, self.v_cache, batch, scale, self.kv_scales)

    def twin(self, q: Tensor, batch: AttentionBatch, scale: float) -> Tensor:
        caches = self.k_cache.double(), self.v_cache.double()
        return paged_attention_reference(q.cuda().double(), *caches, batch, scale, self.kv_scales).cpu()

    def attend(self, chunks: list[Chunk]) -> list[Tensor]:
        q, batch = self.sequences.batch(chunks)
        poison(q)
        out = self.run(q, on_gpu(batch), q.shape[2] ** -0.5)
        return list(torch.split(out, [end - begin for _, begin, end in chunks]))

    def assert_equals_twin(self, chunks: list[Chunk]) -> None:
        q, batch = self.sequences.batch(chunks)
        want = self.twin(q, batch, q.shape[2] ** -0.5)
        got = torch.cat(self.attend(chunks)).cpu().double()
        tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[q.dtype]
        torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


def poison(like: Tensor) -> None:
    """Fills memory that the allocator is about to give away: for the output, the plan and the states."""
    sizes = [like.numel() * like.element_size(), *(1 << bits for bits in range(9, 23))]
    rubbish = [torch.full((size,), 255, dtype=torch.uint8, device="cuda") for size in sizes for _ in range(2)]
    del rubbish


def make(
    lengths: list[int], heads: tuple[int, int], dim: int, block_size: int, dtype: torch.dtype, fp8: bool = False
) -> OnGpu:
    return OnGpu(make_sequences(lengths, heads, dim, block_size, dtype), fp8)


def decodes(lengths: list[int]) -> list[Chunk]:
    return [(b, length - 1, length) for b, length in enumerate(lengths)]


KINDS = [
    pytest.param(dtype, dim, fp8, marks=needs_fp8 if fp8 else ())
    for dtype in HALVES
    for dim, fp8 in ((64, False), (96, False), (128, False), (256, False), (64, True), (128, True))
]
