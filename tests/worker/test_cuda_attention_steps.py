"""Attention in steps of fixed size: padded, captured in graphs, behind the kernel that fills the cache."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.worker.attention_on_gpu import DTYPES, KINDS, Chunk, OnGpu, decodes, make, on_gpu, poison
from tests.worker.cuda import needs_cuda
from tests.worker.test_attention import NAN
from worker.ops.attention import AttentionBatch, paged_attention
from worker.ops.heads import place_heads
from worker.ops.step_attention import attention_workspace

pytestmark = needs_cuda
BFLOAT16 = [kind for kind in KINDS if kind.values[0] is torch.bfloat16]


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
        dtype = sequences.sequences.q[0].dtype
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


@pytest.mark.parametrize(("dtype", "dim", "fp8"), BFLOAT16)
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


@pytest.mark.parametrize(("dtype", "dim", "fp8"), BFLOAT16)
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
    """Some results are missing then; whether the reads were right is seen by sanitized_kernels.py, `attention_wild`."""
    lengths = [40, 700, 1300, 2000]
    sequences = make(lengths, (8, 2), 128, 64, torch.bfloat16)
    for chunks in (decodes(lengths), [(b, 0, n) for b, n in enumerate(lengths)]):
        q, batch = sequences.sequences.batch(chunks)
        held = on_gpu(batch)
        low = AttentionBatch(held.query_starts, held.context_lens, held.block_tables, held.slots, 300, 1)
        out = paged_attention(q.cuda(), sequences.k_cache, sequences.v_cache, low, 0.1)
        torch.cuda.synchronize()
        assert out.shape == q.shape
