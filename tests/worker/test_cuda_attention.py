"""The attention kernels for GPUs against their twin. Skipped where no GPU is, or nvcc was not there to build them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.worker.cuda import needs_cuda
from tests.worker.test_attention import NAN, Sequences, make_sequences
from worker.ops.attention import UNSCALED, AttentionBatch, paged_attention, paged_attention_reference
from worker.ops.dtypes import FP8
from worker.ops.heads import place_heads
from worker.ops.step_attention import attention_workspace, serves_fp8

pytestmark = needs_cuda

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
        return paged_attention_reference(
            q.double(), self.k_cache.double().cpu(), self.v_cache.double().cpu(), batch, scale, self.kv_scales
        )

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
    lengths = [1, block_size - 1, block_size, block_size + 1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 513]
    sequences = make(lengths, heads, dim, block_size, dtype, fp8)
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


KINDS = [
    pytest.param(dtype, dim, fp8, marks=needs_fp8 if fp8 else ())
    for dtype in HALVES
    for dim, fp8 in ((64, False), (96, False), (128, False), (256, False), (64, True), (128, True))
]


@pytest.mark.parametrize(("dtype", "dim", "fp8"), KINDS)
def test_a_token_is_bitwise_the_same_alone_and_in_any_batch(dtype: torch.dtype, dim: int, fp8: bool) -> None:
    lengths = [1, 30, 64, 256, 257, 1000, 2000, 77, 512, 600]
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


def padded(q: Tensor, batch: AttentionBatch, num_sequences: int, num_tokens: int) -> tuple[Tensor, AttentionBatch]:
    """The step with this many sequences and tokens: empty sequences at its end have a token each if all have one."""
    held, more = batch.context_lens.shape[0], num_tokens - q.shape[0]
    each = int(num_tokens == num_sequences)
    last = batch.query_starts[-1] + each * torch.arange(1, num_sequences - held + 1)
    return torch.cat((q, torch.full((more, *q.shape[1:]), NAN, dtype=q.dtype))), AttentionBatch(
        torch.cat((batch.query_starts, last.to(torch.int32))),
        torch.cat((batch.context_lens, torch.zeros(num_sequences - held, dtype=torch.int32))),
        torch.cat((batch.block_tables, torch.full_like(batch.block_tables[:1], -7).repeat(num_sequences - held, 1))),
        torch.cat((batch.slots, torch.full((more,), -1))),
    )


@pytest.mark.parametrize(("heads", "dim"), [((8, 2), 128), ((8, 2), 64), ((4, 1), 96), ((4, 2), 256), ((4, 2), 80)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_padding_changes_nothing(dtype: torch.dtype, heads: tuple[int, int], dim: int) -> None:
    lengths = [300, 1, 513, 64, 700]
    sequences = make(lengths, heads, dim, 64, dtype)
    mixed = [(0, 100, 300), (1, 0, 1), (2, 512, 513), (3, 0, 64)]
    for chunks, sizes in (
        (decodes(lengths), [(8, 8), (64, 64), (6, 20)]),
        (mixed, [(4, 300), (7, 512), (64, 268)]),
        ([(2, 0, 513)], [(1, 600), (3, 513), (9, 1024)]),
    ):
        q, batch = sequences.sequences.batch(chunks)
        want = paged_attention(q.cuda(), sequences.k_cache, sequences.v_cache, on_gpu(batch), 0.1)
        for num_sequences, num_tokens in sizes:
            more, step = padded(q, batch, num_sequences, num_tokens)
            poison(more)
            got = paged_attention(more.cuda(), sequences.k_cache, sequences.v_cache, on_gpu(step), 0.1)
            assert torch.equal(got[: len(q)], want)


class Captured:
    """A step of fixed sizes in a graph, two layers of it, filled anew before each replay."""

    def __init__(self, sequences: OnGpu, num_sequences: int, num_tokens: int, bounds: tuple[int, int]) -> None:
        _, num_heads, dim = sequences.sequences.q[0].shape
        width = max(map(len, sequences.sequences.tables)) + 1
        dtype = sequences.k_cache.dtype
        self.sequences, self.bounds, self.shape = sequences, bounds, (num_sequences, num_tokens, width)
        self.q = torch.zeros(num_tokens, num_heads, dim, dtype=dtype, device="cuda")
        self.starts = torch.zeros(num_sequences + 1, dtype=torch.int32, device="cuda")
        self.context_lens = torch.zeros(num_sequences, dtype=torch.int32, device="cuda")
        self.tables = torch.zeros(num_sequences, width, dtype=torch.int32, device="cuda")
        self.slots = torch.full((num_tokens,), -1, device="cuda")
        self.graph = torch.cuda.CUDAGraph()

    def attend(self, workspace: Tensor | None) -> list[Tensor]:
        step = AttentionBatch(self.starts, self.context_lens, self.tables, self.slots, *self.bounds, workspace)
        return [self.sequences.run(self.q, step, 0.1) for _ in range(2)]

    def capture(self, workspace: Tensor) -> None:
        with torch.cuda.graph(self.graph):
            self.outputs = self.attend(workspace)

    def assert_replay_equals_twin(self, chunks: list[Chunk]) -> None:
        q, batch = self.sequences.sequences.batch(chunks)
        more, step = padded(q, batch, *self.shape[:2])
        for held, now in (
            (self.q, more),
            (self.starts, step.query_starts),
            (self.context_lens, step.context_lens),
            (self.tables, step.block_tables),
            (self.slots, step.slots),
        ):
            held.copy_(now)
        for out in self.outputs:
            out.fill_(NAN)
        self.graph.replay()
        want = self.sequences.twin(q, batch, 0.1)
        for out in self.outputs:
            torch.testing.assert_close(out[: len(q)].cpu().double(), want, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize(("dtype", "dim", "fp8"), [kind for kind in KINDS if kind.values[0] is torch.bfloat16])
def test_graphs_plan_anew_with_each_replay_and_share_a_workspace(dtype: torch.dtype, dim: int, fp8: bool) -> None:
    lengths = [40, 700, 1300, 257, 1]
    sequences = make(lengths, (8, 2), dim, 64, dtype, fp8)
    total = sum(lengths)
    sizes = [((8, 8), (total, 0)), ((8, 512), (total, 3)), ((64, 64), (total, 0))]
    graphs = [Captured(sequences, *size, bounds) for size, bounds in sizes]
    workspace = attention_workspace(dtype, 8, sequences.k_cache, 64, 512, graphs[0].shape[2], total, 3)
    for graph in graphs:
        graph.attend(workspace)  # loads the kernels
        graph.capture(workspace)
    for shorter in (0, 1, 39):
        decode, mixed, wide = graphs
        chunks = [(b, max(0, n - shorter - 1), max(1, n - shorter)) for b, n in enumerate(lengths)]
        decode.assert_replay_equals_twin(chunks)
        mixed.assert_replay_equals_twin([chunks[1], (2, 800 + shorter, 1300), chunks[3]])
        mixed.assert_replay_equals_twin(chunks)
        wide.assert_replay_equals_twin(chunks[::-1])
        # Sequences that ended on the way.
        decode.assert_replay_equals_twin(chunks[2:4])


@pytest.mark.parametrize(("dtype", "dim", "fp8"), [kind for kind in KINDS if kind.values[0] is torch.bfloat16])
@pytest.mark.parametrize("mixed", [False, True])
def test_what_the_kernel_before_puts_into_the_cache_is_seen(
    dtype: torch.dtype, dim: int, fp8: bool, mixed: bool
) -> None:
    """Decode starts to load before that kernel has ended, but for the step's own keys and values."""
    lengths = [1, 16, 17, 64, 65, 300, 513, 1024, 2000, *(33 * i for i in range(1, 40))]
    sequences = make(lengths, (8, 2), dim, 64, dtype, fp8)
    chunks = decodes(lengths)
    if mixed:
        chunks[7] = (7, 900, 1024)
    q, batch = sequences.sequences.batch(chunks)
    step, query = on_gpu(batch), q.cuda()
    want = sequences.run(query, step, 0.1)
    blocks, offsets = step.slots // 64, step.slots % 64
    stored = sequences.k_cache, sequences.v_cache
    k, v = (
        (cache.float()[blocks, :, offsets] * scale).to(dtype)
        for cache, scale in zip(stored, sequences.kv_scales, strict=True)
    )
    layers = [tuple(cache.clone() for cache in stored) for _ in range(5)]
    cos_sin = torch.cat((torch.ones(1, dim // 2), torch.zeros(1, dim // 2)), dim=1).cuda()  # turns nothing
    positions = torch.zeros_like(step.slots)

    def run() -> list[Tensor]:
        outputs = []
        shared = AttentionBatch(
            step.query_starts, step.context_lens, step.block_tables, step.slots, step.total_context, step.num_chunked
        )
        for k_cache, v_cache in layers:
            caches = k_cache, v_cache, step.slots, sequences.kv_scales
            place_heads(query, k, v, None, 1e-6, positions, cos_sin, *caches)
            outputs.append(paged_attention(query, k_cache, v_cache, shared, 0.1, sequences.kv_scales))
        return outputs

    run()  # loads the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run()
    for _ in range(20):
        for layer in layers:
            for cache in layer:
                if fp8:
                    cache.view(torch.uint8)[blocks, :, offsets] = 127
                else:
                    cache[blocks, :, offsets] = NAN
        for out in outputs:
            out.fill_(NAN)
        graph.replay()
        for out in outputs:
            assert torch.equal(out, want)


def test_a_workspace_that_is_too_small_is_refused() -> None:
    sequences = make([40, 700], (8, 2), 128, 64, torch.bfloat16)
    graph = Captured(sequences, 2, 2, (740, 0))
    with pytest.raises(ValueError, match="the workspace must have"):
        graph.attend(torch.empty(100, dtype=torch.int32, device="cuda"))
    with pytest.raises(ValueError, match="on cpu"):
        graph.attend(torch.empty(1 << 20, dtype=torch.int32))


def test_bounds_that_are_too_low_leave_the_tensors_alone() -> None:
    """Some results are missing then; compute-sanitizer sees whether anything was written where it should not be."""
    lengths = [40, 700, 1300, 2000]
    sequences = make(lengths, (8, 2), 128, 64, torch.bfloat16)
    for chunks in (decodes(lengths), [(b, 0, n) for b, n in enumerate(lengths)]):
        q, batch = sequences.sequences.batch(chunks)
        held = on_gpu(batch)
        low = AttentionBatch(held.query_starts, held.context_lens, held.block_tables, held.slots, 300, 1)
        out = paged_attention(q.cuda(), sequences.k_cache, sequences.v_cache, low, 0.1)
        torch.cuda.synchronize()
        assert out.shape == q.shape


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
