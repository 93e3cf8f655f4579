"""The attention kernels for GPUs against their twin. Skipped where no GPU is, or nvcc was not there to build them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.attention_on_gpu import DTYPES, HALVES, KINDS, decodes, make, needs_fp8, on_gpu
from tests.worker.cuda import needs_cuda
from tests.worker.test_attention import NAN
from worker.ops.attention import paged_attention
from worker.ops.step_attention import serves_fp8

pytestmark = needs_cuda


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "dim", "block_size"),
    [
        ((32, 8), 128, 64), ((28, 4), 128, 64), ((32, 8), 64, 64), ((9, 3), 64, 16), ((8, 8), 96, 32),
        ((1, 1), 64, 8), ((5, 1), 256, 16), ((40, 2), 128, 64), ((33, 1), 256, 256), ((6, 2), 80, 16), ((4, 1), 24, 8),
    ],
)  # fmt: skip
def test_equals_the_twin(dtype: torch.dtype, heads: tuple[int, int], dim: int, block_size: int) -> None:
    assert_all_kinds_equal_the_twin(dtype, heads, dim, block_size, fp8=False)


@needs_fp8
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("heads", "dim", "block_size"),
    [
        ((32, 8), 128, 64), ((28, 4), 128, 16), ((32, 8), 64, 64), ((9, 3), 64, 16), ((1, 1), 64, 8),
        ((40, 2), 128, 32), ((33, 1), 128, 128), ((5, 5), 64, 256),
    ],
)  # fmt: skip
def test_a_cache_of_float8_equals_the_twin(
    dtype: torch.dtype, heads: tuple[int, int], dim: int, block_size: int
) -> None:
    assert_all_kinds_equal_the_twin(dtype, heads, dim, block_size, fp8=True)


def assert_all_kinds_equal_the_twin(
    dtype: torch.dtype, heads: tuple[int, int], dim: int, block_size: int, *, fp8: bool
) -> None:
    lengths = [1, block_size - 1, block_size, block_size + 1, 15, 16, 17, 63, 64, 65, 257, 513]
    sequences = make(lengths, heads, dim, block_size, dtype, fp8)
    sequences.assert_equals_twin(decodes(lengths))
    sequences.assert_equals_twin([(b, 0, length) for b, length in enumerate(lengths)])
    sequences.assert_equals_twin([(b, (0, length // 2, length - 1)[b % 3], length) for b, length in enumerate(lengths)])
    # Of one to six chunks: a warp merges up to four, a block more.
    lengths = [511, 512, 513, 1024, 1025, 2048, 2049, 2561]
    make(lengths, heads, dim, block_size, dtype, fp8).assert_equals_twin(decodes(lengths))


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 1100), min_size=1, max_size=6),
    ratio=st.sampled_from([1, 2, 3, 7, 8, 16, 17]),
    num_kv_heads=st.integers(1, 3),
    dim=st.sampled_from([64, 96, 128, 256]),
    block_size=st.sampled_from([8, 16, 64, 128]),
    dtype=st.sampled_from(DTYPES),
    fp8=st.booleans(),
    data=st.data(),
)
def test_random_batches_equal_the_twin(
    lengths: list[int],
    ratio: int,
    num_kv_heads: int,
    dim: int,
    block_size: int,
    dtype: torch.dtype,
    fp8: bool,
    data: st.DataObject,
) -> None:
    fp8 = fp8 and dtype in HALVES and serves_fp8(torch.device("cuda"), dim, block_size)
    sequences = make(lengths, (ratio * num_kv_heads, num_kv_heads), dim, block_size, dtype, fp8)
    chunks = []
    for b, length in enumerate(lengths):
        end = data.draw(st.integers(1, length))
        chunks.append((b, data.draw(st.integers(max(0, end - 200), end)), end))
    sequences.assert_equals_twin(chunks)


@pytest.mark.parametrize(("dtype", "dim", "fp8"), KINDS)
def test_a_token_is_bitwise_the_same_alone_and_in_any_batch(dtype: torch.dtype, dim: int, fp8: bool) -> None:
    lengths = [1, 30, 64, 512, 513, 1000, 2000, 77, 1024, 1100]
    sequences = make(lengths, (8, 2), dim, 64, dtype, fp8)
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


@pytest.mark.parametrize(("dtype", "dim", "fp8"), KINDS)
def test_a_token_is_bitwise_the_same_for_every_cut_into_chunks(dtype: torch.dtype, dim: int, fp8: bool) -> None:
    sequences = make([900], (6, 2), dim, 16, dtype, fp8)
    (whole,) = sequences.attend([(0, 0, 900)])
    for size in (2, 3, 31, 64, 100, 450):
        for begin in range(0, 900, size)[:: max(1, 200 // size)]:
            end = min(begin + size, 900)
            assert torch.equal(sequences.attend([(0, begin, end)])[0], whole[begin:end])


@pytest.mark.parametrize(("dtype", "dim", "fp8"), [kind for kind in KINDS if kind.values[0] is torch.bfloat16])
def test_more_sequences_than_the_plan_measures_at_once(dtype: torch.dtype, dim: int, fp8: bool) -> None:
    """And so more chunks than there are blocks of prefill, which take several each."""
    lengths = [1 + i * 7 % 300 + 900 * (i % 40 == 0) for i in range(1100)]
    sequences = make(lengths, (2, 1), dim, 8, dtype, fp8)
    sequences.assert_equals_twin(decodes(lengths))
    sequences.assert_equals_twin([(b, max(0, length - 1 - b % 5), length) for b, length in enumerate(lengths)])


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
    """The numbers are wrong then; whether the reads were is seen by sanitized_kernels.py, `attention_wild`."""
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
