"""Nobody holds more of a pool's blocks than his plan says, and he is passed over, not waited for."""

from __future__ import annotations

from pools import dealt, decode, pool_of, put, wait_for, worker

from scheduler.fleet import Pool
from scheduler.kv_shares import KvShares
from scheduler.sequence import State
from scheduler.tenant import TenantPlan

# Of two workers of 32 blocks: 16.
QUARTER = TenantPlan("quarter", kv_share=0.25)


def shared_pool() -> Pool:
    """The tenant's sequences hold eleven blocks of two workers."""
    pool = pool_of(worker(1), worker(2))
    decode(pool, 1, wait_for(pool, 100, [1] * 20, tenant=QUARTER))
    decode(pool, 2, wait_for(pool, 101, [1] * 16, tenant=QUARTER))
    assert sum(worker.ledger.reserved(key) for worker in pool.workers.values() for key in worker.sequences) == 11
    return pool


def test_a_tenant_at_his_share_is_passed_over() -> None:
    pool = shared_pool()
    # Five blocks, and one more for which there is none.
    wait_for(pool, 1, [1] * 16, tenant=QUARTER)
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
    small = TenantPlan("small", kv_share=0.01)
    first = wait_for(pool, 1, [1] * 9, tenant=small)
    wait_for(pool, 2, [1] * 9, tenant=small)
    assert dealt(pool) == {1: [1]}
    put(pool, 1, first)
    pool.workers[1].ledger.reserve(1, 10)
    assert dealt(pool) == {}


def test_shares_are_of_the_workers_that_stay() -> None:
    pool = shared_pool()
    waits = wait_for(pool, 1, [1] * 16, tenant=QUARTER)
    assert not KvShares(pool).full(waits)
    pool.workers[2].draining = True
    assert KvShares(pool).full(waits)


def test_nobody_is_counted_where_nobody_has_a_share() -> None:
    pool = shared_pool()
    waits = wait_for(pool, 1, [1])
    shares = KvShares(pool)
    assert not shares.full(waits)
    shares.take(waits)
    assert shares._held is None
