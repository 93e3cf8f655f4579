"""What classes may have on a worker, for whom its places are held, and who makes room there."""

from __future__ import annotations

from dataclasses import replace

from pools import POLICY, dealt, decode, pool_of, put, wait_for, worker

from scheduler.lifecycle import State
from scheduler.placement import deal
from scheduler.pool import Pool
from scheduler.room import Room
from scheduler.sequence import Sequence
from scheduler.tenant import NamedPlan
from scheduler.traffic_class import CLASSES, TrafficClass

INTERACTIVE, RAG, BATCH = (CLASSES[name] for name in ("interactive", "rag", "batch"))
# When an interactive request that came at 0 is due.
DUE = 0.5


def yielding(pool: Pool, now: float = DUE) -> dict[int, list[int]]:
    """Who makes room, by the link of the worker."""
    found = deal(pool, POLICY, now).yielding
    return {link: [key for each in holders for key in each.sequence_ids] for link, holders in found.items()}


def full_of_batch(pool: Pool, link: int, count: int) -> list[Sequence]:
    """Batch sequences that run there, of ids from 10 times the link on."""
    keys = range(10 * link, 10 * link + count)
    return [decode(pool, link, wait_for(pool, key, [9] * 4, traffic_class=BATCH)) for key in keys]


def test_a_class_has_no_more_sequences_on_a_worker_than_it_may_and_nobody_waits_for_it() -> None:
    few = replace(BATCH, max_running=2)
    pool = pool_of(worker(1), worker(2))
    for key in (1, 2, 3, 4, 5):
        wait_for(pool, key, [1], traffic_class=few)
    wait_for(pool, 6, [1], traffic_class=RAG)
    assert dealt(pool) == {1: [6, 2, 4], 2: [1, 3]}
    # What runs there counts.
    pool = pool_of(worker(1))
    decode(pool, 1, wait_for(pool, 9, [1], traffic_class=few))
    for key in (1, 2):
        wait_for(pool, key, [1], traffic_class=few)
    wait_for(pool, 3, [1], traffic_class=RAG)
    assert dealt(pool) == {1: [3, 1]}


def test_a_group_that_is_more_than_its_class_may_have_runs_when_nothing_else_of_it_does() -> None:
    few = replace(BATCH, max_running=1)
    pool = pool_of(worker(1))
    leader, fork = (wait_for(pool, key, [1], traffic_class=few) for key in (1, 2))
    pool.waiting.remove(fork)
    pool.waiting.remove(leader)
    leader.forks, fork.leader = (fork,), leader
    pool.waiting.add(leader)
    assert dealt(pool) == {1: [1]}
    decode(pool, 1, wait_for(pool, 9, [1], traffic_class=few))
    assert dealt(pool) == {}


def test_no_more_of_a_class_is_dealt_than_it_may_have_of_steps_with_decodes() -> None:
    little = replace(RAG, max_prefill_tokens=6)
    pool = pool_of(worker(1))
    for key in (1, 2, 3, 4):
        wait_for(pool, key, [1] * 5, traffic_class=little)
    wait_for(pool, 5, [1] * 2, traffic_class=BATCH)
    assert len(dealt(pool)[1]) == 5
    decode(pool, 1, wait_for(pool, 9, [1]))
    # Of two steps; the third is one that begins within them.
    assert dealt(pool) == {1: [1, 5, 2, 3]}
    # What has begun takes its part.
    begun = wait_for(pool, 8, [1] * 11, traffic_class=little, at=-5.0)
    put(pool, 1, begun)
    assert dealt(pool) == {1: [1, 5]}
    begun.computed = 5
    assert dealt(pool) == {1: [1, 5, 2]}


def test_who_is_not_due_holds_nothing_from_lower_ranks() -> None:
    pool = pool_of(worker(1, num_blocks=10))
    decode(pool, 1, wait_for(pool, 9, [1] * 20))
    wait_for(pool, 1, [1] * 12, traffic_class=BATCH)
    wait_for(pool, 2, [1], traffic_class=BATCH)
    wait_for(pool, 3, [1], at=1.0)
    # Nor does it get lost among its own.
    assert dealt(pool) == {1: [3]}
    # When it has waited for long it holds up all: it would get its share, and the turn is its own.
    pool.waiting.classes["batch"].share.served = pool.waiting.classes["interactive"].share.served - 1
    assert dealt(pool, 1.0) == {1: [3]}
    assert dealt(pool, 60.0) == {}


def test_a_promise_at_stake_gets_a_place_from_a_higher_rank() -> None:
    pool = pool_of(worker(1, max_num_seqs=2))
    full_of_batch(pool, 1, 2)
    wait_for(pool, 1, [1])
    assert yielding(pool, DUE - 0.01) == {}
    assert yielding(pool) == {1: [11]}
    # Nobody else has to while that one leaves.
    pool.workers[1].sequences[11].become(State.PREEMPTED)
    assert yielding(pool) == {}
    assert dealt(pool, DUE) == {}
    # Another one needs another place.
    wait_for(pool, 2, [1])
    assert yielding(pool) == {1: [10]}
    # One of the same class does not get it, nor does one without a promise.
    pool = pool_of(worker(1, max_num_seqs=1))
    decode(pool, 1, wait_for(pool, 9, [1], traffic_class=BATCH, at=50.0))
    wait_for(pool, 1, [1], traffic_class=BATCH)
    assert yielding(pool, 70.0) == {}


def test_room_is_made_for_blocks_too_where_the_least_is_lost_and_only_if_it_helps() -> None:
    # Each that runs has one block, and credit for a second.
    pool = pool_of(worker(1, num_blocks=8), worker(2, num_blocks=6))
    full_of_batch(pool, 1, 3)
    full_of_batch(pool, 2, 2)
    assert [each.ledger.available for each in pool.workers.values()] == [2, 2]
    # It needs three, and one for each that stays; two and the one to grow by come free with each that leaves.
    waits = wait_for(pool, 1, [1] * 9)
    assert yielding(pool) == {2: [21]}
    running = {key: each for worker in pool.workers.values() for key, each in worker.sequences.items()}
    running[21].length_at_preemption = 5
    assert yielding(pool) == {2: [20]}
    running[20].length_at_preemption = 5
    assert yielding(pool) == {1: [12, 11]}
    # Nobody leaves where it would not be enough.
    pool.waiting.remove(waits)
    wait_for(pool, 2, [1] * 20)
    assert yielding(pool) == {1: [12, 11, 10]}
    running[10].length_at_preemption = 5
    assert yielding(pool) == {}


def test_who_has_waited_for_its_patience_or_came_long_before_makes_no_room() -> None:
    def makes_room(traffic_class: TrafficClass, came: float) -> bool:
        pool = pool_of(worker(1, max_num_seqs=1))
        decode(pool, 1, wait_for(pool, 9, [1], traffic_class=traffic_class, at=came))
        wait_for(pool, 1, [1], at=100.0)
        return yielding(pool, 100.5) == {1: [9]}

    assert makes_room(BATCH, 99.0)
    assert makes_room(BATCH, 41.1)
    assert not makes_room(BATCH, 40.9)
    assert not makes_room(replace(BATCH, preemptible=False), 99.0)
    assert makes_room(RAG, 96.1)
    assert not makes_room(RAG, 95.9)


FLOOD, QUIET = NamedPlan("flood"), NamedPlan("quiet")


def start(pool: Pool, key: int, length: int, tenant: NamedPlan, at: float) -> Sequence:
    """One arrives, is the next, and starts."""
    sequence = wait_for(pool, key, [1] * length, tenant=tenant, at=at)
    assert dealt(pool, at)[1] == [key]
    pool.waiting.start(sequence)
    pool.workers[1].expect(sequence)
    sequence.place(1, at)
    pool.workers[1].put(sequence)
    return sequence


def test_who_has_received_less_passes_a_prefill_of_another_tenant_and_is_passed_by_none() -> None:
    pool = pool_of(worker(1, num_blocks=400, max_num_batched_tokens=100))
    pool.waiting.set_owed(0.0)
    begun = start(pool, 1, 30, FLOOD, at=0.0)
    pool.waiting.note_prefill(begun, 0, 10)
    # It is owed nothing for the time before, and is not behind what is to come.
    first = start(pool, 2, 4, QUIET, at=1.0)
    assert first.place_there < begun.place_there
    # With the four it has had more than those ten.
    second = start(pool, 3, 4, QUIET, at=1.1)
    assert first.place_there < begun.place_there < second.place_there
    # An older one of the flood comes behind them all, however urgent.
    later = wait_for(pool, 4, [1] * 2, tenant=FLOOD, at=0.1, claim=(-9.0, 4))
    assert dealt(pool)[1] == [4]
    assert second.place_there < later.place_there


def test_those_of_a_tenant_that_pass_the_others_keep_their_order() -> None:
    pool = pool_of(worker(1, num_blocks=400, max_num_batched_tokens=100))
    begun = start(pool, 1, 90, FLOOD, at=0.0)
    pool.waiting.note_prefill(begun, 0, 40)
    # They are owed, so that all of them pass the one that has begun.
    first, second = (start(pool, key, 20, QUIET, at=float(key)) for key in (2, 3))
    assert first.owed_turn
    assert second.owed_turn
    assert first.place_there <= second.place_there < begun.place_there
    third = wait_for(pool, 4, [1] * 20, tenant=QUIET, at=4.0)
    assert dealt(pool, 4.0)[1] == [4]
    room = Room.of(pool.workers[1], POLICY, pool.waiting)
    room.turn_to(third, pool.waiting.share(third).served, reserved=False)
    # Both that came before it, and not the flood's.
    assert room.tokens_ahead == 40


def test_a_part_is_kept_while_one_is_likely_to_come_to_whom_something_is_owed() -> None:
    def dealt_beside(quiet_at: float, *, slots: int = 64, blocks: int = 4000) -> int:
        """How many of a flood start on a worker, long after it began and a neighbour asked at that time."""
        pool = pool_of(worker(1, max_num_seqs=slots, num_blocks=blocks, max_num_batched_tokens=2000))
        served = start(pool, 1, 8, FLOOD, at=0.0)
        pool.waiting.note_prefill(served, 0, 8)
        quiet = wait_for(pool, 2, [1] * 8, tenant=QUIET, at=quiet_at)
        pool.waiting.remove(quiet)
        for key in range(10, 110):
            wait_for(pool, key, [1] * 8, tenant=FLOOD, at=20.0)
        return len(dealt(pool, 20.0)[1])

    # One runs. Two of 64 slots are kept for who asked lately, none for who did long ago.
    assert dealt_beside(15.0) == 61
    assert dealt_beside(5.0) == 63
    # On a small worker an end comes soon enough, or would cost too much.
    assert dealt_beside(15.0, slots=31) == 30
    # Blocks likewise, four of 128: what one begins with, and one for it to grow by.
    assert dealt_beside(5.0, blocks=128) - dealt_beside(15.0, blocks=128) == 1


def test_who_gets_blocks_from_others_leaves_what_is_kept_for_those_to_whom_something_is_owed() -> None:
    pool = pool_of(worker(1, max_num_seqs=64, num_blocks=64, max_num_batched_tokens=200))
    running = [decode(pool, 1, wait_for(pool, key, [1] * 30, tenant=FLOOD)) for key in range(1, 7)]
    newcomer = wait_for(pool, 9, [1] * 36, tenant=FLOOD, at=1.0)
    beyond = {each.sequence_id for each in running}

    def leaving(*, reserved: bool) -> int:
        room = Room.of(pool.workers[1], POLICY, pool.waiting)
        room.turn_to(newcomer, 0.0, reserved=reserved)
        victims = room.who_returns(newcomer, beyond)
        assert victims is not None
        return len(victims)

    # Of 64 six have eight each and keep one to grow by, and the newcomer needs the other ten: two of these are kept.
    assert (leaving(reserved=False), leaving(reserved=True)) == (0, 1)


def test_what_needs_all_there_is_waits_for_nobody_who_is_only_likely_to_come() -> None:
    pool = pool_of(worker(1, max_num_seqs=64, num_blocks=400, max_num_batched_tokens=100))
    served = start(pool, 1, 8, FLOOD, at=0.0)
    pool.waiting.note_prefill(served, 0, 8)
    pool.workers[1].ledger.reserve(1, 9)
    pool.workers[1].let_go(served)
    pool.waiting.remove(wait_for(pool, 2, [1] * 8, tenant=QUIET, at=1.0))
    leader = wait_for(pool, 3, [1] * 8, tenant=FLOOD, at=2.0)
    pool.waiting.remove(leader)
    leader.forks = tuple(replace(leader, sequence_id=key, leader=leader) for key in range(4, 67))
    pool.waiting.add(leader)
    assert dealt(pool, 2.0) == {1: [3]}


def test_no_more_make_room_than_prompts_can_start() -> None:
    pool = pool_of(worker(1, max_num_seqs=8, num_blocks=400, max_num_batched_tokens=20))
    full_of_batch(pool, 1, 8)
    for key in range(1, 7):
        wait_for(pool, key, [1] * 15)
    # Two steps of twenty.
    assert yielding(pool) == {1: [17, 16, 15]}
