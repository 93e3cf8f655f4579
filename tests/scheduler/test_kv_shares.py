"""Nobody holds more of a pool's blocks than his plan says, and he is passed over, not waited for."""

from __future__ import annotations

import pytest
from pools import POLICY, dealt, decode, pool_of, put, wait_for, worker

from scheduler.kv_shares import KvShares, granted_tokens
from scheduler.lifecycle import State
from scheduler.placement import deal
from scheduler.pool import Pool
from scheduler.tenant import NamedPlan

# Of two workers of 32 blocks: 16.
QUARTER = NamedPlan("quarter", kv_share=0.25)


def shared_pool() -> Pool:
    """The tenant's sequences hold eleven blocks of two workers."""
    pool = pool_of(worker(1), worker(2))
    decode(pool, 1, wait_for(pool, 100, [1] * 20, tenant=QUARTER))
    decode(pool, 2, wait_for(pool, 101, [1] * 16, tenant=QUARTER))
    assert sum(worker.ledger.reserved(key) for worker in pool.workers.values() for key in worker.sequences) == 11
    return pool


def test_a_tenant_at_his_share_is_passed_over() -> None:
    pool = shared_pool()
    # Two blocks and one to grow by, as the others have; and one more for which there is none.
    wait_for(pool, 1, [1] * 4, tenant=QUARTER)
    wait_for(pool, 2, [1], tenant=QUARTER)
    wait_for(pool, 3, [1] * 3)
    assert {key for keys in dealt(pool).values() for key in keys} == {1, 3}
    # Who is next of him waits until something of him has gone; those behind do not take its place.
    pool.waiting.remove(next(each for each in pool.waiting if each.sequence_id == 1))
    wait_for(pool, 4, [1] * 20, tenant=QUARTER, at=-1.0)
    assert {key for keys in dealt(pool).values() for key in keys} == {3}
    leaving = pool.workers[2].sequences[101]
    leaving.become(State.PREEMPTED)
    # As long as it is there it counts.
    assert {key for keys in dealt(pool).values() for key in keys} == {3}
    pool.let_go(pool.workers[2], leaving)
    assert {key for keys in dealt(pool).values() for key in keys} == {2, 3, 4}


def test_what_is_more_than_a_share_runs_when_nothing_else_of_the_tenant_does() -> None:
    pool = pool_of(worker(1))
    small = NamedPlan("small", kv_share=0.01)
    first = wait_for(pool, 1, [1] * 9, tenant=small)
    wait_for(pool, 2, [1] * 9, tenant=small)
    assert dealt(pool) == {1: [1]}
    put(pool, 1, first)
    pool.workers[1].ledger.reserve(1, 10)
    assert dealt(pool) == {}


def test_shares_are_of_the_workers_that_stay() -> None:
    pool = shared_pool()
    waits = wait_for(pool, 1, [1] * 4, tenant=QUARTER)
    assert not KvShares(pool).full(waits)
    pool.workers[2].draining = True
    assert KvShares(pool).full(waits)


@pytest.mark.parametrize(("length", "full"), [(13, False), (16, True)])
def test_blocks_of_different_sizes_count_for_what_they_hold(length: int, full: bool) -> None:
    # 32 blocks of 4 and 8 of 16 tokens: a quarter are 64.
    pool = pool_of(worker(1), worker(2, block_size=16, num_blocks=8))
    decode(pool, 2, wait_for(pool, 100, [1] * length, tenant=QUARTER))
    # One block of it or two, and one to grow by; of the next one two more, if it starts beside it.
    waits = wait_for(pool, 101, [1] * 3, tenant=QUARTER)
    assert KvShares(pool).full(waits) is full
    decode(pool, 1, waits)
    reserved = pool.workers[2].ledger.reserved(100) * 16
    for tokens, beyond in ((64 - reserved, set()), (65 - reserved, {101})):
        pool.workers[1].ledger.reserve(101, tokens)
        assert KvShares(pool).beyond() == beyond


@pytest.mark.parametrize("blocks", [7, 50, 100])
def test_a_share_is_no_block_less_than_it_says(blocks: int) -> None:
    """Though 0.29 x 100, as it is computed, is less than 29."""
    for hundredth in range(1, 100):
        pool = pool_of(worker(1, num_blocks=blocks))
        assert granted_tokens(pool, hundredth / 100) == hundredth * blocks * 4 // 100


def test_nobody_is_counted_where_nobody_has_a_share() -> None:
    pool = shared_pool()
    waits = wait_for(pool, 1, [1])
    shares = KvShares(pool)
    assert not shares.full(waits)
    shares.take(waits)
    assert shares._held is None


def test_beyond_a_share_are_the_least_urgent_of_the_tenant_and_never_all() -> None:
    pool = shared_pool()
    decode(pool, 1, wait_for(pool, 102, [1] * 16))
    assert not KvShares(pool).beyond()
    first, second = pool.workers[1].ledger, pool.workers[2].ledger
    # It grows: twelve and five blocks of sixteen.
    first.reserve(100, 48)
    assert KvShares(pool).beyond() == {101}
    # As much as it likes, as long as it is the most urgent one.
    first.reserve(100, 80)
    assert KvShares(pool).beyond() == {101}
    first.reserve(100, 40)
    assert not KvShares(pool).beyond()
    second.reserve(101, 32)
    assert KvShares(pool).beyond() == {101}
    # Who has been told to leave is not asked again.
    pool.workers[2].sequences[101].become(State.PREEMPTED)
    assert not KvShares(pool).beyond()


def test_who_finds_no_blocks_gets_them_from_who_has_grown_beyond_a_share() -> None:
    pool = pool_of(worker(1, num_blocks=20))
    for key in range(100, 103):
        decode(pool, 1, wait_for(pool, key, [1] * 16, tenant=QUARTER))
    # Five of twenty blocks are left, and five are the share.
    wait_for(pool, 1, [1] * 20)
    given = deal(pool, POLICY, 0.0)
    assert not given.newcomers
    assert [each.sequence_ids for each in given.yielding[1]] == [(102,)]
    # Nobody leaves for what would not help, and nobody for one of his own.
    wait_for(pool, 0, [1] * 70)
    assert not deal(pool, POLICY, 0.0).yielding
    for each in list(pool.waiting):
        pool.waiting.remove(each)
    wait_for(pool, 2, [1] * 20, tenant=QUARTER)
    assert not deal(pool, POLICY, 0.0).yielding
