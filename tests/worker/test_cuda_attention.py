"""The attention kernels for GPUs against their twin. Skipped where no GPU is, or nvcc was not there to build them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.worker.cuda import needs_cuda
from tests.worker.test_attention import NAN, Sequences, make_sequences
from worker.ops.attention import AttentionBatch, paged_attention, paged_attention_reference

pytestmark = needs_cuda

HALVES = [torch.bfloat16, torch.float16]
DTYPES = [*HALVES, torch.float32]
Chunk = tuple[int, int, int]  # sequence, first position, position past the last


def on_gpu(batch: AttentionBatch) -> AttentionBatch:
    # As the executor does: what it knows bounds the memory. A step with idle sequences has no such bound.
    idle = bool((batch.query_starts.diff() == 0).any())
    return AttentionBatch(
        batch.query_starts.cuda(),
        batch.context_lens.cuda(),
        batch.block_tables.cuda(),
        batch.slots.cuda(),
        None if idle else int(batch.context_lens.sum()),
    )


class OnGpu:
    """Sequences whose cache was copied to the GPU once."""

    def __init__(self, sequences: Sequences) -> None:
        self.sequences = sequences
        self.k_cache, self.v_cache = sequences.k_cache.cuda(), sequences.v_cache.cuda()

    def attend(self, chunks: list[Chunk]) -> list[Tensor]:
        q, batch = self.sequences.batch(chunks)
        poison(q)
        out = paged_attention(q.cuda(), self.k_cache, self.v_cache, on_gpu(batch), q.shape[2] ** -0.5)
        return list(torch.split(out, [end - begin for _, begin, end in chunks]))

    def assert_equals_twin(self, chunks: list[Chunk]) -> None:
        q, batch = self.sequences.batch(chunks)
        scale = q.shape[2] ** -0.5
        caches = self.sequences.k_cache.double(), self.sequences.v_cache.double()
        want = paged_attention_reference(q.double(), *caches, batch, scale)
        got = torch.cat(self.attend(chunks)).cpu().double()
        tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[q.dtype]
        torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


def poison(like: Tensor) -> None:
    """Fills memory that the allocator is about to give away: for the output, the plan and the states."""
    sizes = [like.numel() * like.element_size(), *(1 << bits for bits in range(9, 23))]
    rubbish = [torch.full((size,), 255, dtype=torch.uint8, device="cuda") for size in sizes for _ in range(2)]
    del rubbish


def make(lengths: list[int], heads: tuple[int, int], dim: int, block_size: int, dtype: torch.dtype) -> OnGpu:
    return OnGpu(make_sequences(lengths, heads, dim, block_size, dtype))


def decodes(lengths: list[int]) -> list[Chunk]:
    return [(b, length - 1, length) for b, length in enumerate(lengths)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "dim", "block_size"),
    [
        ((32, 8), 128, 64), ((28, 4), 128, 64), ((32, 8), 64, 64), ((9, 3), 64, 16), ((8, 8), 96, 32),
        ((1, 1), 64, 8), ((5, 1), 256, 16), ((40, 2), 128, 64), ((33, 1), 256, 256), ((6, 2), 80, 16), ((4, 1), 24, 8),
    ],
)  # fmt: skip
def test_equals_the_twin(dtype: torch.dtype, heads: tuple[int, int], dim: int, block_size: int) -> None:
    lengths = [1, block_size - 1, block_size, block_size + 1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 513]
    sequences = make(lengths, heads, dim, block_size, dtype)
    sequences.assert_equals_twin(decodes(lengths))
    sequences.assert_equals_twin([(b, 0, length) for b, length in enumerate(lengths)])
    sequences.assert_equals_twin([(b, (0, length // 2, length - 1)[b % 3], length) for b, length in enumerate(lengths)])


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 700), min_size=1, max_size=6),
    ratio=st.sampled_from([1, 2, 3, 7, 8, 16, 17]),
    num_kv_heads=st.integers(1, 3),
    dim=st.sampled_from([64, 96, 128, 256]),
    block_size=st.sampled_from([8, 16, 64, 128]),
    dtype=st.sampled_from(DTYPES),
    data=st.data(),
)
def test_random_batches_equal_the_twin(
    lengths: list[int],
    ratio: int,
    num_kv_heads: int,
    dim: int,
    block_size: int,
    dtype: torch.dtype,
    data: st.DataObject,
) -> None:
    sequences = make(lengths, (ratio * num_kv_heads, num_kv_heads), dim, block_size, dtype)
    chunks = []
    for b, length in enumerate(lengths):
        end = data.draw(st.integers(1, length))
        chunks.append((b, data.draw(st.integers(max(0, end - 200), end)), end))
    sequences.assert_equals_twin(chunks)


@pytest.mark.parametrize("dim", [64, 96, 128, 256])
@pytest.mark.parametrize("dtype", HALVES)
def test_a_token_is_bitwise_the_same_alone_and_in_any_batch(dtype: torch.dtype, dim: int) -> None:
    lengths = [1, 30, 64, 256, 257, 1000, 2000, 77, 512, 600]
    sequences = make(lengths, (8, 2), dim, 64, dtype)
    together = sequences.attend(decodes(lengths))
    again = sequences.attend(list(reversed(decodes(lengths))))
    beside_chunks = sequences.attend([(6, 0, 1000), *decodes(lengths)[:6], (7, 5, 70)])
    for b, chunk in enumerate(decodes(lengths)):
        (alone,) = sequences.attend([chunk])
        assert torch.equal(alone, together[b])
        assert torch.equal(alone, again[-1 - b])
        if b < 6:
            assert torch.equal(alone, beside_chunks[1 + b])
    assert torch.equal(beside_chunks[0], sequences.attend([(6, 0, 1000)])[0])


@pytest.mark.parametrize("dim", [64, 96, 128, 256])
@pytest.mark.parametrize("dtype", HALVES)
def test_a_token_is_bitwise_the_same_for_every_cut_into_chunks(dtype: torch.dtype, dim: int) -> None:
    sequences = make([900], (6, 2), dim, 16, dtype)
    (whole,) = sequences.attend([(0, 0, 900)])
    for size in (2, 3, 31, 64, 100, 450):
        for begin in range(0, 900, size)[:: max(1, 200 // size)]:
            end = min(begin + size, 900)
            assert torch.equal(sequences.attend([(0, begin, end)])[0], whole[begin:end])


def test_more_sequences_than_the_plan_measures_at_once() -> None:
    lengths = [1 + i % 40 for i in range(1500)]
    sequences = make(lengths, (2, 1), 64, 8, torch.bfloat16)
    sequences.assert_equals_twin(decodes(lengths))
    sequences.assert_equals_twin([(b, length // 2, length) for b, length in enumerate(lengths)])


def test_long_contexts() -> None:
    lengths = [9000, 3, 33000, 511]
    sequences = make(lengths, (8, 2), 128, 64, torch.bfloat16)
    sequences.assert_equals_twin(decodes(lengths))
    sequences.assert_equals_twin([(0, 8990, 9000), (2, 32800, 33000)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_sequences_without_queries_and_no_tokens_at_all(dtype: torch.dtype) -> None:
    sequences = make([10, 20, 300], (2, 2), 64, 8, dtype)
    # As many tokens as sequences, but not one each.
    got = sequences.attend([(0, 10, 10), (1, 18, 20), (2, 299, 300)])
    assert got[0].shape == (0, 2, 64)
    for (alone,), beside in zip((sequences.attend([c]) for c in [(1, 18, 20), (2, 299, 300)]), got[1:], strict=True):
        torch.testing.assert_close(beside, alone, atol=1e-2, rtol=1e-2)
    assert sequences.attend([(0, 10, 10)])[0].shape == (0, 2, 64)
    sequences.assert_equals_twin([(0, 10, 10), (1, 18, 20), (2, 299, 300)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_queries(dtype: torch.dtype) -> None:
    sequences = make([20, 333], (4, 2), 64, 8, dtype)
    q, batch = sequences.sequences.batch([(0, 5, 20), (1, 332, 333)])
    arguments = (sequences.k_cache, sequences.v_cache, on_gpu(batch), 0.2)
    want = paged_attention(q.cuda(), *arguments)
    for first in (128, 3):  # the second does not start on 16 bytes
        fused = torch.full((q.shape[0], 8 * 64 + 8), NAN, dtype=dtype, device="cuda")
        view = fused[:, first : first + 256].view(-1, 4, 64)
        view.copy_(q)
        assert torch.equal(paged_attention(view, *arguments), want)
    other_order = q.cuda().transpose(0, 2).contiguous().transpose(0, 2)
    assert torch.equal(paged_attention(other_order, *arguments), want)


def test_a_graph_plans_anew_with_each_replay() -> None:
    lengths = [40, 700, 1300]
    sequences = make(lengths, (8, 2), 128, 64, torch.bfloat16)
    q, batch = sequences.sequences.batch(decodes(lengths))
    query, held = q.cuda(), on_gpu(batch)

    def layers() -> list[Tensor]:
        step = AttentionBatch(held.query_starts, held.context_lens, held.block_tables, held.slots)
        return [paged_attention(query, sequences.k_cache, sequences.v_cache, step, 0.1) for _ in range(2)]

    layers()  # loads the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = layers()
    for shorter in (0, 1, 39):
        held.context_lens.copy_(torch.tensor(lengths, dtype=torch.int32) - shorter)
        graph.replay()
        for got, want in zip(outputs, layers(), strict=True):
            assert torch.equal(got, want)


def test_nothing_waits_for_the_device() -> None:
    sequences = make([40, 700], (8, 2), 128, 64, torch.bfloat16)
    q, batch = sequences.sequences.batch([(0, 39, 40), (1, 20, 700)])
    query, held = q.cuda(), on_gpu(batch)
    torch.cuda.set_sync_debug_mode("error")
    try:
        paged_attention(query, sequences.k_cache, sequences.v_cache, held, 0.1)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_wild_lengths_and_blocks_stay_inside_the_tensors() -> None:
    """The numbers are wrong then; compute-sanitizer sees whether the reads were."""
    sequences = make([100, 90], (4, 2), 128, 16, torch.bfloat16)
    q, batch = sequences.sequences.batch([(0, 99, 100), (1, 20, 90)])
    batch.block_tables[:, 2] = torch.tensor([-5, 10**9])
    batch.context_lens[:] = torch.tensor([10**6, 10**8])
    out = paged_attention(q.cuda(), sequences.k_cache, sequences.v_cache, on_gpu(batch), 0.1)
    torch.cuda.synchronize()
    assert out.shape == q.shape


def test_what_does_not_fit_is_refused() -> None:
    sequences = make([20], (4, 2), 64, 8, torch.bfloat16)
    q, batch = sequences.sequences.batch([(0, 0, 20)])
    query, held = q.cuda(), on_gpu(batch)
    with pytest.raises(ValueError, match="one device"):
        paged_attention(query, sequences.k_cache.cpu(), sequences.v_cache, held, 1.0)
    with pytest.raises(ValueError, match="do not fit each other"):
        paged_attention(query.half(), sequences.k_cache, sequences.v_cache, held, 1.0)
    with pytest.raises(ValueError, match="contiguous"):
        paged_attention(
            query, sequences.k_cache.transpose(0, 2).contiguous().transpose(0, 2), sequences.v_cache, held, 1.0
        )
