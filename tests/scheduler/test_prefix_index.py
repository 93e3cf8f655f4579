"""Names of blocks, and what is known of workers' prefix caches."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from scheduler.prefix_index import PromisedPrefixes, cached_run, chain_keys
from worker import _core


def worker_chain(salt: bytes, token_ids: list[int], block_size: int) -> list[int]:
    """The same with the workers' hash function."""
    name = _core.blake2s(salt, b"tercet-s", 16)
    keys = []
    for start in range(0, (len(token_ids) - 1) // block_size * block_size, block_size):
        words = struct.pack(f"<{block_size}I", *token_ids[start : start + block_size])
        name = _core.blake2s(name + words, b"tercet-b", 16)
        keys.append(int.from_bytes(name[:8], "little"))
    return keys


@given(
    st.binary(max_size=40), st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=70), st.sampled_from([1, 4, 16])
)
def test_keys_are_those_of_the_workers(salt: bytes, token_ids: list[int], block_size: int) -> None:
    assert list(chain_keys(salt, token_ids, block_size)) == worker_chain(salt, token_ids, block_size)


def test_the_last_token_is_never_taken_from_the_cache() -> None:
    assert len(chain_keys(b"", list(range(8)), 4)) == 1
    assert len(chain_keys(b"", list(range(9)), 4)) == 2
    assert chain_keys(b"", [1], 4) == ()


def test_a_key_depends_on_all_before_it_and_on_the_salt() -> None:
    keys = chain_keys(b"", [1, 2, 3, 4, 5, 6, 7, 8, 9], 4)
    other = chain_keys(b"", [1, 2, 3, 4, 5, 6, 7, 0, 9], 4)
    assert keys[0] == other[0]
    assert keys[1] != other[1]
    assert chain_keys(b"", [0, 2, 3, 4, 5, 6, 7, 8, 9], 4)[1] != keys[1]
    assert not set(chain_keys(b"tenant", [1, 2, 3, 4, 5, 6, 7, 8, 9], 4)) & set(keys)


def test_a_run_ends_at_the_first_gap() -> None:
    assert cached_run((1, 2, 3, 4), {1, 2, 4}) == 2
    assert cached_run((1, 2, 3, 4), {1, 3}, {2}) == 3
    assert cached_run((), {1}) == 0


def test_promises_last_until_the_last_one_who_made_them_is_settled() -> None:
    promised = PromisedPrefixes()
    promised.add(1, (10, 11))
    promised.add(2, (10, 12))
    promised.add(3, ())
    assert len(promised) == 2
    promised.settle(1)
    assert (10 in promised, 11 in promised, 12 in promised) == (True, False, True)
    promised.settle(1)
    promised.add(2, (13,))
    assert (10 in promised, 13 in promised, len(promised)) == (False, True, 1)
    promised.settle(2)
    assert not len(promised)
    assert 13 not in promised
