from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from worker import _core
from worker.ops.attention import (
    AttentionBatch,
    paged_attention,
    paged_attention_reference,
    write_kv,
    write_kv_reference,
)
from worker.ops.dtypes import FP8

DTYPES = [torch.float32, torch.bfloat16]
NAN = float("nan")


@dataclass(frozen=True)
class Sequences:
    """Sequences in one cache: all their keys and values written, everything else NaN."""

    k_cache: Tensor
    v_cache: Tensor
    q: list[Tensor]  # [context, H, D] each
    tables: list[list[int]]

    def batch(self, chunks: list[tuple[int, int, int]]) -> tuple[Tensor, AttentionBatch]:
        """Queries and batch for (sequence, first position, position past the last) of each chunk."""
        block_size = self.k_cache.shape[2]
        starts, slots = [0], []
        width = max((len(table) for table in self.tables), default=0) + 1
        # Entries past a sequence's blocks are rubbish on purpose.
        rows = torch.full((len(chunks), width), 10**6, dtype=torch.int32)
        for row, (b, begin, end) in enumerate(chunks):
            table = self.tables[b]
            rows[row, : len(table)] = torch.tensor(table, dtype=torch.int32)
            slots += [table[p // block_size] * block_size + p % block_size for p in range(begin, end)]
            starts.append(starts[-1] + end - begin)
        batch = AttentionBatch(
            query_starts=torch.tensor(starts, dtype=torch.int32),
            context_lens=torch.tensor([end for _, _, end in chunks], dtype=torch.int32),
            block_tables=rows,
            slots=torch.tensor(slots, dtype=torch.int64),
        )
        return torch.cat([self.q[b][begin:end] for b, begin, end in chunks]), batch

    def attend(self, chunks: list[tuple[int, int, int]]) -> list[Tensor]:
        q, batch = self.batch(chunks)
        out = paged_attention(q, self.k_cache, self.v_cache, batch, q.shape[2] ** -0.5)
        return list(out.split([end - begin for _, begin, end in chunks]))


def make_sequences(
    context_lens: list[int],
    heads: tuple[int, int],
    dim: int,
    block_size: int,
    dtype: torch.dtype,
    seed: int = 0,
) -> Sequences:
    generator = torch.Generator().manual_seed(seed)
    num_heads, num_kv_heads = heads
    counts = [-(-length // block_size) for length in context_lens]
    order = torch.randperm(sum(counts) + 2, generator=generator).tolist()
    shape = (len(order), num_kv_heads, block_size, dim)
    k_cache, v_cache = torch.full(shape, NAN, dtype=dtype), torch.full(shape, NAN, dtype=dtype)
    queries, tables = [], []
    for length, count in zip(context_lens, counts, strict=True):
        table = [order.pop() for _ in range(count)]
        tables.append(table)
        slots = torch.tensor([table[p // block_size] * block_size + p % block_size for p in range(length)])
        k, v = (torch.randn(length, num_kv_heads, dim, generator=generator).to(dtype) for _ in range(2))
        write_kv(k, v, k_cache, v_cache, slots)
        queries.append((torch.randn(length, num_heads, dim, generator=generator) * 2).to(dtype))
    return Sequences(k_cache, v_cache, queries, tables)


def assert_equals_twin(
    sequences: Sequences, chunks: list[tuple[int, int, int]], tolerance: float | None = None
) -> None:
    q, batch = sequences.batch(chunks)
    scale = q.shape[2] ** -0.5
    got = paged_attention(q, sequences.k_cache, sequences.v_cache, batch, scale)
    want = paged_attention_reference(q.double(), sequences.k_cache.double(), sequences.v_cache.double(), batch, scale)
    tolerance = tolerance or (1e-5 if q.dtype == torch.float32 else 1e-2)
    torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "dim", "block_size"),
    [((1, 1), 8, 8), ((9, 3), 64, 16), ((8, 8), 40, 32), ((32, 4), 128, 256), ((70, 1), 16, 64), ((5, 1), 256, 16)],
)
def test_equals_the_twin(isa: str, dtype: torch.dtype, heads: tuple[int, int], dim: int, block_size: int) -> None:
    lengths = [1, block_size - 1, block_size, block_size + 1, 63, 64, 65, 150]
    sequences = make_sequences(lengths, heads, dim, block_size, dtype)
    decode = [(b, length - 1, length) for b, length in enumerate(lengths)]
    mixed = [(b, length // 2 if b % 2 else length - 1, length) for b, length in enumerate(lengths)]
    for chunks in (decode, mixed):
        assert_equals_twin(sequences, chunks)


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_contexts_are_merged_from_segments(isa: str, num_threads: int, dtype: torch.dtype) -> None:
    lengths = [700, 129, 128, 127, 257]
    sequences = make_sequences(lengths, (6, 2), 64, 16, dtype)
    assert_equals_twin(sequences, [(b, length - 1, length) for b, length in enumerate(lengths)])
    assert_equals_twin(sequences, [(b, length // 3, length) for b, length in enumerate(lengths)])
    assert_equals_twin(sequences, [(0, 0, 700)])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=5),
    ratio=st.sampled_from([1, 2, 3, 7]),
    num_kv_heads=st.integers(1, 3),
    dim=st.sampled_from([8, 16, 24, 64, 256]),
    block_size=st.sampled_from([8, 16, 128]),
    dtype=st.sampled_from(DTYPES),
    data=st.data(),
)
def test_a_token_is_bitwise_the_same_however_it_is_computed(
    lengths: list[int],
    ratio: int,
    num_kv_heads: int,
    dim: int,
    block_size: int,
    dtype: torch.dtype,
    data: st.DataObject,
) -> None:
    sequences = make_sequences(lengths, (ratio * num_kv_heads, num_kv_heads), dim, block_size, dtype)
    together = sequences.attend([(b, 0, length) for b, length in enumerate(lengths)])
    b = data.draw(st.integers(0, len(lengths) - 1))
    length = lengths[b]
    # One by one, as in decoding.
    for position in {0, length - 1, data.draw(st.integers(0, length - 1))}:
        (alone,) = sequences.attend([(b, position, position + 1)])
        assert torch.equal(alone[0], together[b][position])
    # In chunks of one size, alone and beside the others.
    chunk = data.draw(st.integers(1, length))
    for begin in range(0, length, chunk):
        end = min(begin + chunk, length)
        others = [(other, lengths[other] - 1, lengths[other]) for other in range(len(lengths)) if other != b]
        assert torch.equal(sequences.attend([*others, (b, begin, end)])[-1], together[b][begin:end])


@pytest.mark.parametrize("dtype", DTYPES)
def test_bitwise_the_same_for_every_number_of_threads(isa: str, num_threads: int, dtype: torch.dtype) -> None:
    lengths = [900, 3, 130, 260]
    sequences = make_sequences(lengths, (4, 2), 32, 16, dtype)
    chunks = [(0, 899, 900), (1, 0, 3), (2, 20, 130), (3, 0, 260)]
    want = sequences.attend(chunks)
    for count in (1, 2, 3, 8):
        _core.set_num_threads(count)
        for got, expected in zip(sequences.attend(chunks), want, strict=True):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_later_tokens_cannot_reach_earlier_ones(isa: str, dtype: torch.dtype) -> None:
    """Not even with NaN and infinities in the same chunk of keys."""
    sequences = make_sequences([100], (4, 1), 64, 16, dtype)
    want = sequences.attend([(0, 0, 100)])[0]
    block, offset = sequences.tables[0][70 // 16], 70 % 16
    sequences.k_cache[block, :, offset] = NAN
    sequences.v_cache[block, :, offset] = float("inf")
    got = sequences.attend([(0, 0, 100)])[0]
    assert torch.equal(got[:70], want[:70])
    assert got[70:].isnan().all()


def test_large_scores_do_not_overflow(isa: str) -> None:
    for dtype in DTYPES:
        sequences = make_sequences([150], (2, 1), 16, 16, dtype)
        sequences.q[0].mul_(1000)
        # A score of some thousands is rounded to a ten-thousandth.
        assert_equals_twin(sequences, [(0, 0, 150)], tolerance=1e-2)


def test_strided_queries(isa: str) -> None:
    for dtype in DTYPES:
        sequences = make_sequences([20, 33], (4, 2), 24, 8, dtype)
        q, batch = sequences.batch([(0, 5, 20), (1, 32, 33)])
        fused = torch.full((q.shape[0], 8 * 24), NAN, dtype=dtype)
        view = fused[:, 48:144].view(-1, 4, 24)
        view.copy_(q)
        arguments = (sequences.k_cache, sequences.v_cache, batch, 0.2)
        assert torch.equal(paged_attention(view, *arguments), paged_attention(q, *arguments))
        other_order = q.transpose(0, 2).contiguous().transpose(0, 2)
        assert torch.equal(paged_attention(other_order, *arguments), paged_attention(q, *arguments))


def test_sequences_without_queries_and_no_tokens_at_all(isa: str) -> None:
    sequences = make_sequences([10, 20], (2, 2), 16, 8, torch.float32)
    (_, got) = sequences.attend([(0, 10, 10), (1, 19, 20)])
    assert torch.equal(got, sequences.attend([(1, 19, 20)])[0])
    q, batch = sequences.batch([(0, 10, 10)])
    assert paged_attention(q, sequences.k_cache, sequences.v_cache, batch, 1.0).shape == (0, 2, 16)


def test_the_twin_takes_padding() -> None:
    """As steps of a fixed size have it: empty sequences with a token or none, tokens that no sequence has."""
    sequences = make_sequences([30, 50], (4, 2), 16, 8, torch.float64)
    q, batch = sequences.batch([(0, 29, 30), (0, 30, 30), (1, 40, 50)])
    batch.context_lens[1] = 0
    padded = AttentionBatch(
        torch.cat((batch.query_starts, torch.tensor([12, 12], dtype=torch.int32))),
        torch.cat((batch.context_lens, torch.zeros(2, dtype=torch.int32))),
        torch.cat((batch.block_tables, torch.full_like(batch.block_tables[:2], 10**6))),
        torch.cat((batch.slots, torch.full((4,), -1))),
    )
    more = torch.cat((q, torch.full_like(q[:4], NAN)))
    got = paged_attention(more, sequences.k_cache, sequences.v_cache, padded, 0.25)
    for want, chunk in zip((got[:1], got[1:11]), [(0, 29, 30), (1, 40, 50)], strict=True):
        assert torch.equal(sequences.attend([chunk])[0], want)


def test_other_dtypes_take_the_twin() -> None:
    sequences = make_sequences([30], (4, 2), 16, 8, torch.float64)
    q, batch = sequences.batch([(0, 3, 30)])
    want = torch.nn.functional.scaled_dot_product_attention(
        sequences.q[0].transpose(0, 1),
        *(
            cache[sequences.tables[0]].transpose(1, 2).reshape(-1, 2, 16)[:30].repeat_interleave(2, 1).transpose(0, 1)
            for cache in (sequences.k_cache, sequences.v_cache)
        ),
        is_causal=True,
    ).transpose(0, 1)[3:]
    torch.testing.assert_close(paged_attention(q, sequences.k_cache, sequences.v_cache, batch, 0.25), want)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_write_kv_equals_the_twin_and_writes_nothing_else(num_threads: int, dtype: torch.dtype) -> None:
    for num_tokens in (0, 1, 7, 500):
        slots = torch.randperm(40 * 16)[:num_tokens]
        fused = torch.randn(num_tokens, 8 * 24).to(dtype)
        k, v = (fused[:, begin : begin + 72].view(-1, 3, 24) for begin in (0, 96))
        caches = [torch.full((40, 3, 16, 24), -7.0, dtype=dtype) for _ in range(4)]
        write_kv(k, v, caches[0], caches[1], slots)
        write_kv_reference(k, v, caches[2], caches[3], slots)
        assert torch.equal(caches[0], caches[2])
        assert torch.equal(caches[1], caches[3])
        assert (caches[0] == -7).all(dim=-1).sum() == (40 * 16 - num_tokens) * 3


def test_slots_outside_the_cache_are_refused_before_any_write() -> None:
    for dtype in (torch.float32, torch.float64):
        cache = torch.zeros(4, 1, 8, 8, dtype=dtype)
        k = torch.ones(2, 1, 8, dtype=dtype)
        for bad in (-1, 32):
            with pytest.raises(IndexError, match=f"slot {bad}"):
                write_kv(k, k, cache, cache, torch.tensor([3, bad]))
        assert not cache.any()


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_a_cache_of_float8(dtype: torch.dtype) -> None:
    """Where there are no kernels for it: rounded once, to the largest number at most, NaN to NaN."""
    k, v = torch.randn(3, 2, 8).to(dtype), torch.tensor([1000.0, -1000.0, NAN]).to(dtype)[:, None, None].expand(3, 2, 8)
    k_cache, v_cache = (torch.zeros(2, 2, 8, 8).to(FP8) for _ in range(2))
    slots = torch.tensor([3, 8, 2])
    write_kv(k, v, k_cache, v_cache, slots, (0.25, 2.0))
    rows = [cache.float().transpose(1, 2).reshape(16, 2, 8)[slots] for cache in (k_cache, v_cache)]
    torch.testing.assert_close(rows[0] * 0.25, k.float(), atol=2**-10, rtol=2**-4)
    assert [rows[1][i].unique().tolist() for i in (0, 1)] == [[448.0], [-448.0]]
    assert rows[1][2].isnan().all()
    batch = AttentionBatch(
        torch.tensor([0, 1], dtype=torch.int32),
        torch.tensor([1], dtype=torch.int32),
        torch.tensor([[1]], dtype=torch.int32),
        torch.tensor([8]),
    )
    out = paged_attention(k[:1].contiguous(), k_cache, v_cache, batch, 1.0, (0.25, 2.0))
    assert out.dtype is dtype
    assert out.unique().tolist() == [-896.0]
    for scales in ((0.0, 1.0), (1.0, -2.0)):
        with pytest.raises(ValueError, match="do not fit each other"):
            write_kv(k, v, k_cache, v_cache, slots, scales)
    with pytest.raises(ValueError, match="do not fit each other"):
        write_kv(k, v, k_cache.to(dtype), v_cache.to(dtype), slots, (0.25, 2.0))


def test_what_does_not_fit_is_refused() -> None:
    sequences = make_sequences([20], (4, 2), 16, 8, torch.float32)
    q, batch = sequences.batch([(0, 0, 20)])
    k_cache, v_cache = sequences.k_cache, sequences.v_cache
    int32 = torch.int32

    def changed(**changes: Tensor) -> AttentionBatch:
        fields = {name: getattr(batch, name) for name in ("query_starts", "context_lens", "block_tables", "slots")}
        return AttentionBatch(**{**fields, **changes})

    refused: list[tuple[str, AttentionBatch]] = [
        ("shorter than its 20", changed(context_lens=torch.tensor([19], dtype=int32))),
        ("needs 5 blocks", changed(context_lens=torch.tensor([33], dtype=int32))),
        ("block 1000000 of", changed(context_lens=torch.tensor([25], dtype=int32))),
        ("block -1 of", changed(block_tables=torch.tensor([[-1, 0, 0]], dtype=int32))),
        ("run from 0 to", changed(query_starts=torch.tensor([0, 19], dtype=int32))),
    ]
    for problem, bad in refused:
        with pytest.raises(ValueError, match=problem):
            paged_attention(q, k_cache, v_cache, bad, 1.0)
    with pytest.raises(ValueError, match="do not fit each other"):
        paged_attention(q[:, :, :8], k_cache, v_cache, batch, 1.0)
    with pytest.raises(ValueError, match="do not fit each other"):
        paged_attention(q[:, :3], k_cache, v_cache, batch, 1.0)
    with pytest.raises(ValueError, match="do not fit each other"):
        paged_attention(q.bfloat16(), k_cache, v_cache, batch, 1.0)
    with pytest.raises(ValueError, match="contiguous"):
        paged_attention(q, k_cache.transpose(0, 2).contiguous().transpose(0, 2), v_cache, batch, 1.0)
    with pytest.raises(ValueError, match="context_lens must be"):
        changed(context_lens=torch.tensor([20]))
    with pytest.raises(ValueError, match="query_starts must be"):
        changed(query_starts=torch.tensor([0], dtype=int32))
    with pytest.raises(ValueError, match="do not fit each other"):
        write_kv(q[:, :1], q[:, :1], k_cache, v_cache, batch.slots)


def test_tensors_of_several_devices_are_refused() -> None:
    """The kernels read addresses: a tensor that lies elsewhere must not get there."""
    sequences = make_sequences([20], (4, 2), 16, 8, torch.float32)
    q, batch = sequences.batch([(0, 0, 20)])
    caches = sequences.k_cache, sequences.v_cache
    for moved in range(2):
        mixed = [cache.to("meta") if i == moved else cache for i, cache in enumerate(caches)]
        with pytest.raises(ValueError, match=f"one device: .*{'kv'[moved]}_cache on meta"):
            paged_attention(q, mixed[0], mixed[1], batch, 1.0)
    with pytest.raises(ValueError, match="one device: q on meta, k_cache on cpu"):
        paged_attention(q.to("meta"), *caches, batch, 1.0)
    fields = {name: getattr(batch, name) for name in ("query_starts", "context_lens", "block_tables", "slots")}
    for name, tensor in fields.items():
        with pytest.raises(ValueError, match=f"one device: .*{name} on meta"):
            AttentionBatch(**{**fields, name: tensor.to("meta")})
    elsewhere = {name: fields[name].to("meta") for name in ("block_tables", "slots")}
    AttentionBatch(**{**fields, **elsewhere})
    with pytest.raises(ValueError, match=r"one device: .*context_lens on cpu"):
        AttentionBatch(**{**fields, **elsewhere, "query_starts": batch.query_starts.to("meta")})
    elsewhere_batch = AttentionBatch(**{name: tensor.to("meta") for name, tensor in fields.items()})
    with pytest.raises(ValueError, match=r"one device: .*batch on meta"):
        paged_attention(q, *caches, elsewhere_batch, 1.0)

    arguments = {"k": q[:, :2], "v": q[:, 2:], "k_cache": caches[0], "v_cache": caches[1], "slots": batch.slots}
    for name, tensor in arguments.items():
        with pytest.raises(ValueError, match=f"one device: .*{name} on meta"):
            write_kv(**{**arguments, name: tensor.to("meta")})
