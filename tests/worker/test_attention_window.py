"""Sliding windows and capped scores in attention on the CPU, against the twin."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.worker.test_attention import DTYPES, NAN, Sequences, make_sequences
from worker import _core
from worker.ops.attention import paged_attention, paged_attention_reference

Chunk = tuple[int, int, int]
SCALE = 0.3


def attend(sequences: Sequences, chunks: list[Chunk], window: int | None, softcap: float | None = None) -> list[Tensor]:
    q, batch = sequences.batch(chunks)
    out = paged_attention(q, sequences.k_cache, sequences.v_cache, batch, SCALE, window=window, softcap=softcap)
    return list(torch.split(out, [end - begin for _, begin, end in chunks]))


def assert_equals_twin(
    sequences: Sequences, chunks: list[Chunk], window: int | None, softcap: float | None = None
) -> None:
    q, batch = sequences.batch(chunks)
    want = paged_attention_reference(
        q.double(), sequences.k_cache.double(), sequences.v_cache.double(), batch, SCALE, window=window, softcap=softcap
    )
    tolerance = 1e-5 if q.dtype == torch.float32 else 1e-2
    got = torch.cat(attend(sequences, chunks, window, softcap)).double()
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


def test_the_twin_sees_a_window_of_keys() -> None:
    """Against a softmax written out for one query."""
    sequences = make_sequences([40], (2, 1), 8, 8, torch.float64)
    q, batch = sequences.batch([(0, 30, 31)])
    keys, values = (
        cache[sequences.tables[0]].transpose(1, 2).reshape(-1, 8) for cache in (sequences.k_cache, sequences.v_cache)
    )
    got = paged_attention(q, sequences.k_cache, sequences.v_cache, batch, SCALE, window=5, softcap=2.0)
    for head in range(2):
        scores = 2.0 * torch.tanh(SCALE * keys[26:31] @ q[0, head] / 2.0)
        torch.testing.assert_close(got[0, head], scores.softmax(0) @ values[26:31])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 2, 63, 64, 65, 128, 129, 200, 1000])
def test_windows_equal_the_twin(isa: str, dtype: torch.dtype, window: int) -> None:
    lengths = [1, 63, 64, 65, 127, 128, 130, 400]
    sequences = make_sequences(lengths, (6, 2), 24, 16, dtype)
    assert_equals_twin(sequences, [(b, length - 1, length) for b, length in enumerate(lengths)], window)
    assert_equals_twin(sequences, [(b, length // 3, length) for b, length in enumerate(lengths)], window)
    assert_equals_twin(sequences, [(7, 0, 400)], window, softcap=5.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_caps_equal_the_twin(isa: str, dtype: torch.dtype) -> None:
    sequences = make_sequences([300, 5], (4, 2), 64, 16, dtype)
    for softcap in (0.5, 10.0, 50.0):
        assert_equals_twin(sequences, [(0, 100, 300), (1, 4, 5)], None, softcap)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=4),
    ratio=st.sampled_from([1, 2, 3, 7]),
    dim=st.sampled_from([8, 24, 64]),
    block_size=st.sampled_from([8, 16, 128]),
    window=st.one_of(st.integers(1, 10), st.integers(11, 300), st.sampled_from([64, 128, 256])),
    softcap=st.sampled_from([None, 3.0]),
    dtype=st.sampled_from(DTYPES),
    data=st.data(),
)
def test_a_token_is_bitwise_the_same_however_it_is_computed(
    lengths: list[int], ratio: int, dim: int, block_size: int, window: int, softcap: float | None,
    dtype: torch.dtype, data: st.DataObject,
) -> None:  # fmt: skip
    sequences = make_sequences(lengths, (2 * ratio, 2), dim, block_size, dtype)
    together = attend(sequences, [(b, 0, length) for b, length in enumerate(lengths)], window, softcap)
    assert all(out.isfinite().all() for out in together)
    b = data.draw(st.integers(0, len(lengths) - 1))
    length = lengths[b]
    for position in {0, length - 1, data.draw(st.integers(0, length - 1))}:
        (alone,) = attend(sequences, [(b, position, position + 1)], window, softcap)
        assert torch.equal(alone[0], together[b][position])
    chunk = data.draw(st.integers(1, length))
    for begin in range(0, length, chunk):
        end = min(begin + chunk, length)
        others = [(other, lengths[other] - 1, lengths[other]) for other in range(len(lengths)) if other != b]
        assert torch.equal(attend(sequences, [*others, (b, begin, end)], window, softcap)[-1], together[b][begin:end])


@pytest.mark.parametrize("dtype", DTYPES)
def test_bitwise_the_same_for_every_number_of_threads(isa: str, num_threads: int, dtype: torch.dtype) -> None:
    sequences = make_sequences([900, 3, 600], (4, 2), 32, 16, dtype)
    chunks = [(0, 899, 900), (1, 0, 3), (2, 0, 600)]
    want = attend(sequences, chunks, 150)
    for count in (1, 2, 3, 8):
        _core.set_num_threads(count)
        for got, expected in zip(attend(sequences, chunks, 150), want, strict=True):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wide_window_changes_no_bit(isa: str, dtype: torch.dtype) -> None:
    sequences = make_sequences([300], (4, 1), 64, 16, dtype)
    (want,) = attend(sequences, [(0, 0, 300)], None)
    for window in (300, 10**6, 2**40):
        assert torch.equal(attend(sequences, [(0, 0, 300)], window)[0], want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 30, 64, 100])
def test_what_lies_outside_the_window_cannot_be_seen(isa: str, dtype: torch.dtype, window: int) -> None:
    """Not even NaN and infinities, in the same chunk of keys, by whoever is computed beside those that see them."""
    sequences = make_sequences([250], (4, 1), 64, 16, dtype)
    (want,) = attend(sequences, [(0, 0, 250)], window)
    block, offset = sequences.tables[0][70 // 16], 70 % 16
    sequences.k_cache[block, :, offset] = NAN
    sequences.v_cache[block, :, offset] = float("inf")
    for begin in (0, 71, 70 + window):
        (got,) = attend(sequences, [(0, begin, 250)], window)
        sees = torch.tensor([70 <= position < 70 + window for position in range(begin, 250)])
        assert torch.equal(got[~sees], want[begin:][~sees])
        assert got[sees].isnan().all()


def test_what_cannot_be_a_window_or_a_cap_is_refused() -> None:
    sequences = make_sequences([20], (2, 1), 8, 8, torch.float32)
    for window, softcap in ((0, None), (-1, None), (None, 0.0), (None, -1.0)):
        with pytest.raises(ValueError, match="must be above 0"):
            attend(sequences, [(0, 0, 20)], window, softcap)
