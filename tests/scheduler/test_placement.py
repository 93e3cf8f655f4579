"""Where waiting sequences go."""

from __future__ import annotations

from sequences import sequence_of
from simulated_worker import worker_info
from virtual_mesh import submission

from scheduler.events import BlockCounts
from scheduler.fleet import Fleet, Pool, Worker
from scheduler.placement import deal
from scheduler.sequence import Request


def pool_of(*workers: Worker) -> Pool:
    fleet = Fleet(tuple(worker.address for worker in workers))
    for worker in workers:
        pool = fleet.add(worker)
    return pool


def wait(pool: Pool, *lengths: int) -> None:
    for key, length in enumerate(lengths, 1):
        request = Request(1, submission(key, [1] * length), 0.0, None)
        pool.waiting.add(sequence_of(request, key, [1] * length, length + 8))


def dealt(pool: Pool) -> dict[int, list[int]]:
    return {link: [sequence.sequence_id for sequence in each] for link, each in deal(pool).items()}


def test_load_evens_out() -> None:
    pool = pool_of(Worker(1, "a:1", worker_info()), Worker(2, "b:1", worker_info()))
    wait(pool, 40, 4, 4, 4)
    assert dealt(pool) == {1: [1], 2: [2, 3, 4]}


def test_the_worker_with_more_credits_is_preferred() -> None:
    busy = Worker(1, "a:1", worker_info())
    busy.ledger.report(BlockCounts(8, 0, 24))
    pool = pool_of(busy, Worker(2, "b:1", worker_info()))
    wait(pool, 4)
    assert dealt(pool) == {2: [1]}


def test_slots_bound_what_is_dealt() -> None:
    pool = pool_of(Worker(1, "a:1", worker_info(max_num_seqs=2)))
    wait(pool, 1, 1, 1)
    assert dealt(pool) == {1: [1, 2]}


def test_only_a_worker_that_can_ever_hold_it_gets_it() -> None:
    pool = pool_of(Worker(1, "a:1", worker_info(num_blocks=4)), Worker(2, "b:1", worker_info(num_blocks=12)))
    wait(pool, 30, 4)
    assert dealt(pool)[2][0] == 1


def test_order_is_strict_when_credits_are_short() -> None:
    pool = pool_of(Worker(1, "a:1", worker_info()))
    wait(pool, 100, 60, 1)
    assert dealt(pool) == {1: [1]}


def test_a_worker_that_is_being_dropped_gets_nothing() -> None:
    worker = Worker(1, "a:1", worker_info())
    worker.dropped = True
    pool = pool_of(worker)
    wait(pool, 4)
    assert dealt(pool) == {}
