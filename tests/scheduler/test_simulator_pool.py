"""The block pool of simulated workers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.prefix_index import chain_keys
from scheduler.simulator.pool import OutOfBlocksError, SimulatedPool, block_name, key_of, salt_name


@settings(max_examples=100)
@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.sampled_from(["take", "share", "copy", "publish", "drop"]), st.integers(0, 99)), max_size=60),
)
def test_blocks_are_free_cached_or_used_and_never_two(num_blocks: int, moves: list[tuple[str, int]]) -> None:
    pool = SimulatedPool(num_blocks, 4)
    held: list[int] = []
    known: set[int] = set()
    for move, pick in moves:
        if move == "take":
            if pool.counts.free + pool.counts.cached:
                held.append(pool.take())
            else:
                with pytest.raises(OutOfBlocksError):
                    pool.take()
        elif held:
            index = pick % len(held)
            if move == "share":
                pool.share(held[index])
                held.append(held[index])
            elif move == "copy" and pool.counts.free + pool.counts.cached:
                held[index] = pool.copy(held[index])
            elif move == "publish" and held[index] not in pool.name_of:
                pool.publish(held[index], block_name(b"", [pick]))
            elif move == "drop":
                last = held.count(held[index]) == 1
                assert pool.drop(held.pop(index)) is last
        assert pool.check() == []
        assert pool.counts.used == len(set(held))
        removed, stored = pool.take_changes()
        known = known - set(removed) | set(stored)
        assert known == pool.keys


def test_the_oldest_cached_block_is_evicted_and_one_that_is_found_is_not() -> None:
    pool = SimulatedPool(3, 4)
    blocks = [pool.take() for _ in range(3)]
    names = [block_name(b"", [index]) for index in range(3)]
    for block, name in zip(blocks, names, strict=True):
        pool.publish(block, name)
        pool.drop(block)
    pool.share(pool.block_of[names[0]])
    assert pool.take() == blocks[1]
    assert set(pool.block_of) == {names[0], names[2]}
    assert pool.take_changes() == ((key_of(names[1]),), (key_of(names[0]), key_of(names[2])))


def test_names_are_those_by_which_requests_are_placed() -> None:
    tokens = [300, 1, 2, 70_000, 5, 6, 7]
    first = block_name(salt_name(b"tenant"), tokens[:3])
    second = block_name(first, tokens[3:6])
    assert chain_keys(b"tenant", tokens, 3) == (key_of(first), key_of(second))
