"""Sliding windows and capped scores in the attention kernels for GPUs, against their twin."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.worker.attention_on_gpu import DTYPES, HALVES, KINDS, Chunk, OnGpu, decodes, make, on_gpu, poison
from tests.worker.cuda import needs_cuda
from tests.worker.test_attention import NAN
from worker.ops.attention import AttentionBatch, paged_attention, paged_attention_reference
from worker.ops.step_attention import attention_workspace, serves_fp8

pytestmark = needs_cuda

SCALE = 0.3
WINDOWS = [1, 2, 15, 64, 65, 500, 512, 513, 1300]


def attend(sequences: OnGpu, chunks: list[Chunk], window: int | None, softcap: float | None = None) -> list[Tensor]:
    q, batch = sequences.sequences.batch(chunks)
    poison(q)
    out = paged_attention(
        q.cuda(), sequences.k_cache, sequences.v_cache, on_gpu(batch), SCALE, sequences.kv_scales,
        window=window, softcap=softcap,
    )  # fmt: skip
    return list(torch.split(out, [end - begin for _, begin, end in chunks]))


def assert_equals_twin(sequences: OnGpu, chunks: list[Chunk], window: int | None, softcap: float | None = None) -> None:
    q, batch = sequences.sequences.batch(chunks)
    want = paged_attention_reference(
        q.cuda().double(), sequences.k_cache.double(), sequences.v_cache.double(), batch, SCALE, sequences.kv_scales,
        window=window, softcap=softcap,
    )  # fmt: skip
    got = torch.cat(attend(sequences, chunks, window, softcap))
    tolerance = {torch.float32: 5e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[q.dtype]
    torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("dtype", "dim", "fp8"), [*KINDS, pytest.param(torch.float32, 80, False)])
def test_windows_equal_the_twin(dtype: torch.dtype, dim: int, fp8: bool, window: int) -> None:
    lengths = [1, 15, 16, 17, 63, 64, 65, 511, 512, 513, 514, 1024, 1025, 2600]
    sequences = make(lengths, (6, 2), dim, 16, dtype, fp8)
    assert_equals_twin(sequences, decodes(lengths), window)
    mixed = [(b, (0, length // 2, length - 1)[b % 3], length) for b, length in enumerate(lengths)]
    assert_equals_twin(sequences, mixed, window)
    assert_equals_twin(sequences, [(13, 2470, 2600), (11, 1023, 1024)], window, softcap=3.0)


@pytest.mark.parametrize("softcap", [0.5, 10.0, 50.0])
@pytest.mark.parametrize(("dtype", "dim", "fp8"), [*KINDS, pytest.param(torch.float32, 80, False)])
def test_caps_equal_the_twin(dtype: torch.dtype, dim: int, fp8: bool, softcap: float) -> None:
    lengths = [1, 64, 300, 1100]
    sequences = make(lengths, (8, 2), dim, 64, dtype, fp8)
    assert_equals_twin(sequences, decodes(lengths), None, softcap)
    assert_equals_twin(sequences, [(b, length // 2, length) for b, length in enumerate(lengths)], None, softcap)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 1500), min_size=1, max_size=5),
    ratio=st.sampled_from([1, 2, 3, 7, 8, 16, 17]),
    num_kv_heads=st.integers(1, 3),
    dim=st.sampled_from([64, 96, 128, 256]),
    block_size=st.sampled_from([8, 16, 64, 128]),
    dtype=st.sampled_from(DTYPES),
    fp8=st.booleans(),
    window=st.one_of(st.none(), st.integers(1, 100), st.integers(101, 1400)),
    softcap=st.sampled_from([None, 4.0]),
    data=st.data(),
)
def test_random_batches_equal_the_twin(
    lengths: list[int], ratio: int, num_kv_heads: int, dim: int, block_size: int, dtype: torch.dtype, fp8: bool,
    window: int | None, softcap: float | None, data: st.DataObject,
) -> None:  # fmt: skip
    fp8 = fp8 and dtype in HALVES and serves_fp8(torch.device("cuda"), dim, block_size)
    sequences = make(lengths, (ratio * num_kv_heads, num_kv_heads), dim, block_size, dtype, fp8)
    chunks = []
    for b, length in enumerate(lengths):
        end = data.draw(st.integers(1, length))
        chunks.append((b, data.draw(st.integers(max(0, end - 300), end)), end))
    assert_equals_twin(sequences, chunks, window, softcap)


@pytest.mark.parametrize("window", [40, 512, 700])
@pytest.mark.parametrize(("dtype", "dim", "fp8"), KINDS)
def test_a_token_is_bitwise_the_same_in_any_batch_and_cut(dtype: torch.dtype, dim: int, fp8: bool, window: int) -> None:
    lengths = [1, 64, 513, 1000, 2000, 77, 1024]
    sequences = make(lengths, (8, 2), dim, 64, dtype, fp8)
    together = attend(sequences, decodes(lengths), window, 5.0)
    beside_chunks = attend(sequences, [(4, 0, 1500), *decodes(lengths)[:4], (5, 5, 70)], window, 5.0)
    for b, chunk in enumerate(decodes(lengths)):
        (alone,) = attend(sequences, [chunk], window, 5.0)
        assert torch.equal(alone, together[b])
        if b < 4:
            assert torch.equal(alone, beside_chunks[1 + b])
    (whole,) = attend(sequences, [(4, 0, 1500)], window, 5.0)
    assert torch.equal(beside_chunks[0], whole)
    for size in (2, 31, 64, 450):
        for begin in range(0, 1500, size)[:: max(1, 300 // size)]:
            end = min(begin + size, 1500)
            if end - begin > 1:
                assert torch.equal(attend(sequences, [(4, begin, end)], window, 5.0)[0], whole[begin:end])


@pytest.mark.parametrize(("dtype", "dim", "fp8"), KINDS)
def test_a_wide_window_is_none(dtype: torch.dtype, dim: int, fp8: bool) -> None:
    lengths = [30, 700, 1300]
    sequences = make(lengths, (8, 2), dim, 64, dtype, fp8)
    for chunks in (decodes(lengths), [(b, 0, length) for b, length in enumerate(lengths)]):
        for window in (1300, 2**40):
            for got, want in zip(attend(sequences, chunks, window), attend(sequences, chunks, None), strict=True):
                torch.testing.assert_close(got, want, atol=1e-2, rtol=1e-2)


def test_long_contexts_read_the_window_alone() -> None:
    """Tiles of the context that no window reaches hold NaN."""
    lengths = [9000, 20000]
    sequences = make(lengths, (8, 2), 128, 64, torch.bfloat16)
    chunks = [(0, 8990, 9000), (1, 19999, 20000)]
    want = attend(sequences, chunks, 1000)
    for b, (_, begin, _end) in enumerate(chunks):
        unseen = torch.tensor(sequences.sequences.tables[b][: (begin - 1000 - 128) // 64])
        sequences.k_cache[unseen] = NAN
        sequences.v_cache[unseen] = NAN
    for got, expected in zip(attend(sequences, chunks, 1000), want, strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize(("dtype", "dim", "fp8"), [kind for kind in KINDS if kind.values[0] is torch.bfloat16])
def test_layers_of_two_windows_share_a_captured_step(dtype: torch.dtype, dim: int, fp8: bool) -> None:
    """Each kind plans for itself, anew with each replay, in its own part of one workspace."""
    lengths = [40, 700, 1300, 257, 1]
    sequences = make(lengths, (8, 2), dim, 64, dtype, fp8)
    windows = (100, None, 100, None)
    for chunks in (decodes(lengths), [(1, 300, 700), *decodes(lengths)[2:]]):
        q, batch = sequences.sequences.batch(chunks)
        step, query = on_gpu(batch), q.cuda()
        workspace = attention_workspace(
            dtype, 8, sequences.k_cache, len(chunks), len(q), step.block_tables.shape[1], step.total_context,
            step.num_chunked, windows,
        )  # fmt: skip

        def run(query: Tensor = query, step: AttentionBatch = step, workspace: Tensor = workspace) -> list[Tensor]:
            shared = AttentionBatch(
                step.query_starts, step.context_lens, step.block_tables, step.slots, step.total_context,
                step.num_chunked, workspace,
            )  # fmt: skip
            caches = sequences.k_cache, sequences.v_cache
            return [paged_attention(query, *caches, shared, SCALE, sequences.kv_scales, window=w) for w in windows]

        want = [torch.cat(attend(sequences, chunks, window)) for window in windows]
        run()  # loads the kernels
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = run()
        for _ in range(3):
            for out in outputs:
                out.fill_(NAN)
            workspace.fill_(-1)
            graph.replay()
            assert all(torch.equal(out, expected) for out, expected in zip(outputs, want, strict=True))
