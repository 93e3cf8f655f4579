"""The pool alone: counts, exhaustion, what is evicted first, what `check` guards."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from worker._core import BlockPool, BlockTable, OutOfBlocks

S = 4


def filled(pool: BlockPool, token_ids: list[int], salt: bytes = b"") -> BlockTable:
    """A table whose KV for `token_ids` is computed, whatever is cached."""
    table = BlockTable(pool, salt)
    table.reserve(len(token_ids))
    table.commit(token_ids)
    return table


def matches(pool: BlockPool, token_ids: list[int], salt: bytes = b"") -> int:
    """Tokens of the cached prefix. The match makes its blocks the most recently used ones."""
    return BlockTable(pool, salt).match_prefix(token_ids)


def counts(pool: BlockPool) -> tuple[int, int, int]:
    pool.check()
    assert pool.num_free + pool.num_cached + pool.num_used == pool.num_total
    return pool.num_free, pool.num_cached, pool.num_used


def test_blocks_go_from_free_to_used_to_cached() -> None:
    pool = BlockPool(6, S)
    assert (pool.block_size, pool.num_total) == (S, 6)
    assert counts(pool) == (6, 0, 0)
    table = filled(pool, list(range(2 * S + 1)))
    assert counts(pool) == (3, 0, 3)
    assert table.release() == 3
    assert counts(pool) == (4, 2, 0), "the partial block is free, the full ones are kept"


def test_without_prefix_caching_nothing_is_kept() -> None:
    pool = BlockPool(6, S, enable_prefix_caching=False)
    table = filled(pool, list(range(3 * S)))
    assert table.num_tokens == 3 * S
    assert matches(pool, list(range(3 * S))) == 0
    assert table.release() == 3
    assert counts(pool) == (6, 0, 0)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (-1, 4), (4, 0), (4, -16)])
def test_impossible_sizes_are_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        BlockPool(num_blocks, block_size)


def test_exhaustion_changes_nothing() -> None:
    pool = BlockPool(4, S)
    kept = filled(pool, list(range(2 * S)))
    table = BlockTable(pool)
    with pytest.raises(OutOfBlocks, match="3 blocks are needed, 2 are free and 0 cached of 4"):
        table.reserve(2 * S + 1)
    assert table.num_blocks == 0
    assert counts(pool) == (2, 0, 2)
    table.reserve(2 * S)
    assert counts(pool) == (0, 0, 4)
    kept.release()
    table.reserve(4 * S)
    assert counts(pool) == (0, 0, 4), "cached blocks are taken when none is free"


def test_free_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(4, S)
    filled(pool, list(range(2 * S))).release()
    table = BlockTable(pool)
    table.reserve(2 * S)
    assert counts(pool) == (0, 2, 2)
    assert matches(pool, list(range(2 * S))) == 2 * S


def test_free_blocks_that_are_to_be_last_are_taken_last() -> None:
    pool = BlockPool(7, S, enable_prefix_caching=False)
    first, second, other = (filled(pool, list(range(2 * S))) for _ in range(3))
    late = [*first.blocks(), *second.blocks()]
    for table in (first, second):
        blocks = table.blocks()
        table.release()
        pool.hand_out_last(blocks)
    other.release()
    pool.hand_out_last([])
    table = BlockTable(pool)
    table.reserve(7 * S)
    # What was last of all comes behind what was last before it.
    assert sorted(table.blocks()[:3]) == sorted(set(range(7)) - set(late))
    assert table.blocks()[3:] == late
    pool.hand_out_last(table.blocks())
    assert counts(pool) == (0, 0, 7), "those in use are nobody's"


def test_least_recently_used_is_evicted_first() -> None:
    pool = BlockPool(3, S)
    first, second, third = ([start + i for i in range(S)] for start in (0, 100, 200))
    for token_ids in (first, second, third):
        filled(pool, token_ids).release()
    assert matches(pool, first) == S  # used again: second is the oldest now
    table = BlockTable(pool)
    table.reserve(S)
    assert (matches(pool, second), matches(pool, third), matches(pool, first)) == (0, S, S)


def test_leaves_of_a_chain_are_evicted_before_their_parents() -> None:
    pool = BlockPool(4, S)
    token_ids = list(range(4 * S))
    filled(pool, token_ids).release()
    table = BlockTable(pool)
    for taken in range(1, 5):
        table.reserve(taken * S)
        probe = BlockTable(pool)
        assert probe.match_prefix(token_ids) == (4 - taken) * S
        probe.release()


def test_a_prefix_whose_beginning_others_computed_too_is_evicted_from_its_end() -> None:
    pool = BlockPool(6, S)
    first = filled(pool, list(range(S)))
    # Its first block is a duplicate without a name; its second one is published behind the name of the first.
    second = filled(pool, list(range(2 * S)))
    first.release()
    other = filled(pool, list(range(100, 100 + S)))
    other.release()
    second.release()
    assert counts(pool) == (3, 3, 0)
    table = BlockTable(pool)
    for taken, left in ((4, 2 * S), (5, S), (6, 0)):
        table.reserve(taken * S)
        probe = BlockTable(pool)
        assert probe.match_prefix(list(range(2 * S))) == left
        probe.release()


def test_a_duplicate_takes_the_name_that_was_lost_meanwhile() -> None:
    pool = BlockPool(4, S)
    first, second = filled(pool, list(range(S))), filled(pool, list(range(2 * S)))
    first.release()
    table = BlockTable(pool)
    table.reserve(2 * S)
    assert matches(pool, list(range(2 * S))) == 0
    second.release()
    assert counts(pool) == (0, 2, 2)
    assert matches(pool, list(range(2 * S))) == 2 * S


def test_events_tell_what_changed_and_nothing_twice() -> None:
    pool = BlockPool(2, S)
    assert [keys.tolist() for keys in pool.take_events()] == [[], []]
    filled(pool, list(range(2 * S))).release()
    removed, stored = pool.take_events()
    assert (removed.dtype, stored.dtype) == (np.uint64, np.uint64)
    assert (len(removed), stored.tolist()) == (0, pool.published_keys().tolist())
    before = stored.tolist()
    # Gone, there, and gone again.
    filled(pool, list(range(50, 50 + 2 * S))).release()
    filled(pool, list(range(2 * S))).release()
    filled(pool, list(range(50, 50 + 2 * S))).release()
    removed, stored = pool.take_events()
    assert (removed.tolist(), stored.tolist()) == (before, pool.published_keys().tolist())
    # There again, and nobody was told that it was gone.
    filled(pool, list(range(2 * S))).release()
    filled(pool, list(range(50, 50 + 2 * S))).release()
    assert [keys.tolist() for keys in pool.take_events()] == [[], []]


def test_a_matched_block_is_not_evicted() -> None:
    pool = BlockPool(3, S)
    filled(pool, list(range(2 * S))).release()
    reader = BlockTable(pool)
    assert reader.match_prefix(list(range(2 * S))) == 2 * S
    greedy = BlockTable(pool)
    greedy.reserve(S)
    with pytest.raises(OutOfBlocks):
        greedy.reserve(2 * S)
    assert counts(pool) == (0, 0, 3)
    assert set(reader.blocks()).isdisjoint(greedy.blocks())


def test_the_first_of_two_equal_blocks_stays_published() -> None:
    pool = BlockPool(4, S)
    token_ids = list(range(S))
    first, second = filled(pool, token_ids), filled(pool, token_ids)
    reader = BlockTable(pool)
    assert reader.match_prefix(token_ids) == S
    assert reader.blocks() == first.blocks() != second.blocks()
    assert second.release() == 1
    assert counts(pool) == (3, 0, 1), "the duplicate has no name, so nothing of it is kept"


def test_what_a_fork_published_behind_a_shared_duplicate_is_evicted_before_it() -> None:
    pool = BlockPool(4, S)
    token_ids = list(range(2 * S))
    first, leader = filled(pool, token_ids[:S]), filled(pool, token_ids[:S])
    fork = leader.fork()
    first.release()
    fork.reserve(2 * S)
    fork.commit(token_ids[S:])
    fork.release()
    assert counts(pool) == (1, 2, 1)
    leader.reserve(3 * S)
    assert counts(pool) == (0, 1, 3)
    assert matches(pool, token_ids) == S


def test_a_dropped_table_gives_its_blocks_back() -> None:
    pool = BlockPool(4, S)
    table = filled(pool, list(range(2 * S)))
    del table
    assert counts(pool) == (2, 2, 0)


def test_a_pool_outlives_its_last_name() -> None:
    table = BlockTable(BlockPool(2, S))
    table.reserve(2 * S)
    assert sorted(table.blocks()) == [0, 1]
    assert table.release() == 2


def test_ten_thousand_sequences_leave_nothing_in_use() -> None:
    pool = BlockPool(16, S)
    for start in range(10_000):
        filled(pool, [start + i for i in range(start % 30 + 1)])
    assert counts(pool)[2] == 0


def test_check_lets_other_threads_run() -> None:
    """It takes as long as the pool is large. Threads here only change when one waits, or releases the interpreter."""
    pool = BlockPool(20_000, 1)
    table = filled(pool, list(range(20_000)))
    started, ended = threading.Event(), threading.Event()

    def check() -> None:
        started.set()
        pool.check()
        ended.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        # Under load this thread may miss a whole check, but not so many.
        for _ in range(100):
            started.clear()
            ended.clear()
            checker = threading.Thread(target=check)
            checker.start()
            started.wait()
            overlapped = not ended.is_set()
            checker.join()
            if overlapped:
                break
    finally:
        sys.setswitchinterval(interval)
    assert overlapped
    assert table.release() == 20_000
