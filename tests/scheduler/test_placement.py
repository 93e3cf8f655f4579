"""Where waiting sequences go."""

from __future__ import annotations

import pytest
from outcomes import judge, settle
from pools import POLICY, dealt, pool_of, put, wait, wait_for, worker
from sequences import sequence_of

from scheduler.events import BlockCounts
from scheduler.lifecycle import State
from scheduler.placement import (
    COMPUTED_WEIGHT,
    SEQUENCE_WEIGHT,
    deal,
    late,
)
from scheduler.policy import Policy
from scheduler.pool import Pool
from scheduler.prefix_index import chain_keys
from scheduler.progress import LATE_SECONDS, LATE_SECONDS_UNKNOWN, LATE_STEPS
from scheduler.sequence import MAX_LOSSES, Sequence
from scheduler.simulator.mesh import VirtualMesh
from scheduler.simulator.small import submission, worker_info
from scheduler.worker import Worker

PREFIX = list(range(40))


# The one that came first.
EARLIEST = 0


def busy(pool: Pool, link: int, tokens: int) -> None:
    """Prefill of that many tokens is there, more urgent than all that wait."""
    put(pool, link, wait_for(pool, EARLIEST, [9] * tokens))


def test_load_evens_out() -> None:
    pool = pool_of(worker(1), worker(2))
    wait(pool, 40, 4, 4, 4)
    assert dealt(pool) == {1: [1], 2: [2, 3, 4]}


def test_of_equals_the_worker_with_more_credits_is_preferred() -> None:
    pool = pool_of(worker(1), worker(2))
    pool.workers[1].ledger.report(BlockCounts(8, 0, 24))
    wait(pool, 4)
    assert dealt(pool) == {2: [1]}


def test_prefill_that_waits_and_sequences_that_run_are_load() -> None:
    pool = pool_of(worker(1), worker(2))
    runs = wait_for(pool, 8, [1])
    put(pool, 1, runs)
    runs.become(State.DECODE)
    wait(pool, 4)
    assert dealt(pool) == {2: [1]}
    # One that runs is less than forty tokens.
    busy(pool, 2, 40)
    assert dealt(pool) == {1: [1]}
    # What is computed of them is no load any more; of equals the first is as good as any.
    pool.workers[2].sequences[EARLIEST].computed = 40
    assert dealt(pool) == {1: [1]}
    pool.workers[2].sequences[EARLIEST].become(State.DECODE)
    put(pool, 1, wait_for(pool, 9, [1]))
    assert dealt(pool) == {2: [1]}


def test_slots_that_a_group_lends_are_for_who_is_more_urgent() -> None:
    pool = pool_of(worker(1, max_num_seqs=2), worker(2, max_num_seqs=2))
    leader, fork = (wait_for(pool, key, [9] * 8, claim=(5.0, key)) for key in (8, 9))
    pool.waiting.remove(fork)
    leader.forks, fork.leader = (fork,), leader
    put(pool, 1, leader)
    fork.place(1, 0.0)
    pool.workers[1].put(fork)
    # The other one has less room and more to do.
    busy(pool, 2, 20)
    wait_for(pool, 1, [1])
    assert dealt(pool) == {2: [1]}
    # Now it is known that the prefill is not over.
    leader.computed = 4
    assert pool.workers[1].free_slots == 1
    assert dealt(pool) == {1: [1]}
    pool.waiting.remove(next(iter(pool.waiting)))
    wait_for(pool, 2, [1], claim=(6.0, 2))
    assert dealt(pool) == {2: [2]}
    # A plan may complete it.
    pool.workers[1].window.send(1, {leader.sequence_id: 4}, revoke=False)
    assert pool.workers[1].free_slots == 0


def test_prefill_that_is_less_urgent_stands_in_nobodys_way() -> None:
    pool = pool_of(worker(1))
    batch = wait_for(pool, 9, [9] * 100, claim=(60.0, 9))
    put(pool, 1, batch)
    wait_for(pool, 1, [1] * 3)
    # As urgent as what is there lets wait: behind that there is no room.
    wait_for(pool, 2, [1] * 3, claim=(61.0, 2))
    assert dealt(pool) == {1: [1]}
    batch.computed = 80
    assert dealt(pool) == {1: [1, 2]}
    # It is no load for the one, and for the other it is.
    pool = pool_of(worker(1), worker(2))
    put(pool, 1, wait_for(pool, 9, [9] * 28, claim=(60.0, 9)))
    for key in (7, 8):
        decodes = wait_for(pool, key, [1])
        put(pool, 2, decodes)
        decodes.become(State.DECODE)
    wait_for(pool, 1, [1] * 3)
    wait_for(pool, 2, [1] * 3, claim=(61.0, 2))
    assert dealt(pool) == {1: [1], 2: [2]}


def test_slots_bound_what_is_dealt() -> None:
    pool = pool_of(worker(1, max_num_seqs=2))
    wait(pool, 1, 1, 1)
    assert dealt(pool) == {1: [1, 2]}


def test_nothing_is_looked_at_while_no_worker_has_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(worker(1, max_num_seqs=1))
    put(pool, 1, wait_for(pool, 8, [1]))
    wait(pool, 1)
    monkeypatch.setattr("scheduler.pool.FairOrder", None)
    assert dealt(pool) == {}


def test_no_more_is_dealt_than_can_start() -> None:
    pool = pool_of(worker(1, max_num_seqs=100, max_num_batched_tokens=100, num_blocks=1000))
    wait(pool, *[50] * 20)
    # Two steps of 100 tokens.
    assert dealt(pool) == {1: [1, 2, 3, 4]}


def test_only_a_worker_that_can_ever_hold_it_gets_it() -> None:
    pool = pool_of(worker(1, num_blocks=4), worker(2, num_blocks=12))
    wait(pool, 30, 4)
    assert dealt(pool)[2][0] == 1


def test_one_that_has_to_wait_holds_up_only_the_workers_it_may_go_to() -> None:
    pool = pool_of(worker(1, num_blocks=12), worker(2, num_blocks=4))
    put(pool, 1, wait_for(pool, 8, [1]))
    pool.workers[1].ledger.report(BlockCounts(3, 0, 9))
    wait(pool, 30, 1, 1)
    assert dealt(pool) == {2: [2, 3]}


def test_order_is_strict_when_credits_are_short() -> None:
    pool = pool_of(worker(1, max_num_batched_tokens=1000))
    wait(pool, 100, 60, 1)
    assert dealt(pool) == {1: [1]}


def test_a_worker_that_is_being_dropped_or_drains_gets_nothing() -> None:
    pool = pool_of(worker(1), worker(2))
    pool.workers[1].dropped = True
    pool.workers[2].draining = True
    wait(pool, 4)
    assert dealt(pool) == {}


def test_a_group_needs_a_slot_and_a_block_for_each() -> None:
    def group(pool: Pool) -> None:
        leader = wait_for(pool, 1, [1] * 6)
        forks = [sequence_of(leader.request, key, [1] * 6, 14, leader=leader) for key in (2, 3)]
        leader.forks = tuple(forks)
        wait_for(pool, 4, [1])

    pool = pool_of(worker(1, max_num_seqs=4))
    group(pool)
    assert dealt(pool) == {1: [1, 4]}
    # One is there, two slots are left: the group waits, and so does the one behind it.
    pool = pool_of(worker(1, max_num_seqs=3))
    put(pool, 1, wait_for(pool, 8, [1]))
    group(pool)
    assert dealt(pool) == {}
    # Two blocks for the prompt, one for each fork, one for the one that is there to grow by.
    for free, expected in ((5, {1: [1]}), (4, {})):
        pool = pool_of(worker(1))
        put(pool, 1, wait_for(pool, 8, [1]))
        pool.workers[1].ledger.report(BlockCounts(free, 0, 32 - free))
        group(pool)
        assert dealt(pool) == expected


def test_a_request_goes_to_its_prefix() -> None:
    pool = pool_of(worker(1), worker(2))
    pool.workers[2].prefixes.update(chain_keys(b"", [*PREFIX, 0], 4))
    wait_for(pool, 1, [*PREFIX, 7])
    wait_for(pool, 2, [9, *PREFIX])
    assert dealt(pool) == {2: [1], 1: [2]}


def test_load_outweighs_a_prefix() -> None:
    pool = pool_of(worker(1, max_num_batched_tokens=64), worker(2, max_num_batched_tokens=64))
    pool.workers[2].prefixes.update(chain_keys(b"", [*PREFIX, 0], 4))
    wait_for(pool, 1, [*PREFIX, 7])
    # What it saves there against a sequence there, and what that has to compute.
    least = COMPUTED_WEIGHT * 40 - SEQUENCE_WEIGHT
    busy(pool, 2, least + 1)
    assert dealt(pool) == {1: [1]}
    pool.workers[2].sequences[EARLIEST].computed = 2
    assert dealt(pool) == {2: [1]}


def test_one_waits_for_its_prefix_where_that_is_sooner() -> None:
    pool = pool_of(worker(1), worker(2))
    pool.workers[2].prefixes.update(chain_keys(b"", [*PREFIX, 0], 4))
    waiting = [wait_for(pool, 1, [*PREFIX, 7]), wait_for(pool, 2, [3])]
    # More prefill than two steps of 16 take.
    busy(pool, 2, 33)
    assert dealt(pool) == {1: [2]}
    pool.workers[2].sequences[EARLIEST].computed = 2
    assert dealt(pool) == {1: [2], 2: [1]}
    assert waiting[0].state is State.QUEUED


def test_no_more_is_dealt_than_plans_can_start() -> None:
    pool = pool_of(worker(1, num_blocks=500, max_num_seqs=100, max_num_batched_tokens=100))
    runs = wait_for(pool, 99, [1])
    put(pool, 1, runs)
    runs.become(State.DECODE)
    wait(pool, *[20] * 50)
    assert [len(each) for each in deal(pool, Policy(0, 30), 0.0).newcomers.values()] == [3]
    assert [len(each) for each in deal(pool, Policy(0, 0), 0.0).newcomers.values()] == [10]


def test_a_prefix_of_another_tenant_attracts_nothing() -> None:
    pool = pool_of(worker(1), worker(2))
    pool.workers[2].prefixes.update(chain_keys(b"tenant", PREFIX, 4))
    wait_for(pool, 1, [*PREFIX, 7])
    assert dealt(pool) == {1: [1]}


def test_keys_are_made_once_and_only_where_there_is_a_choice() -> None:
    pool = pool_of(worker(1))
    sequence = wait_for(pool, 1, [*PREFIX, 7])
    deal(pool, POLICY, 0.0)
    assert sequence.prefix_keys is None
    pool = pool_of(worker(1), worker(2))
    sequence = wait_for(pool, 1, [*PREFIX, 7])
    deal(pool, POLICY, 0.0)
    assert sequence.prefix_keys == {4: chain_keys(b"", [*PREFIX, 7], 4)}
    put(pool, 1, sequence)
    assert sequence.prefix_keys is None


def test_a_burst_with_one_prefix_goes_to_one_place_until_load_outweighs() -> None:
    changes = {"num_blocks": 1000, "max_num_batched_tokens": 1000, "max_num_seqs": 50}
    pool = pool_of(worker(1, **changes), worker(2, **changes))
    prompts = [[*PREFIX, *range(50, 60), key] for key in range(1, 13)]
    for key, prompt in enumerate(prompts, 1):
        wait_for(pool, key, prompt)
    first = dealt(pool)
    # The prefix is in no cache yet. Each that joins it costs the others its own part and its place.
    alone = min(first[2])
    assert first[1][:3] == [1, 2, 3]
    assert first[1][: alone - 1] == list(range(1, alone))
    whole = len(prompts[0])
    own = whole - 48
    costs = [COMPUTED_WEIGHT * own + whole + (there - 1) * own + SEQUENCE_WEIGHT * there for there in range(1, 12)]
    assert costs[alone - 3] <= COMPUTED_WEIGHT * whole <= costs[alone - 2]
    # The same when they come one by one.
    pool = pool_of(worker(1, **changes), worker(2, **changes))
    for key, prompt in enumerate(prompts, 1):
        sequence = wait_for(pool, key, prompt)
        (link,) = dealt(pool)
        assert link == (1 if key < alone else 2)
        if key == alone:
            break
        put(pool, link, sequence)


def test_what_was_promised_is_forgotten_with_the_sequence() -> None:
    pool = pool_of(worker(1, max_num_batched_tokens=64), worker(2, max_num_batched_tokens=64))
    deal_to = pool.workers[1]
    first = wait_for(pool, 1, [*PREFIX, 7])
    deal(pool, POLICY, 0.0)
    put(pool, 1, first)
    wait_for(pool, 2, [*PREFIX, 8])
    assert dealt(pool) == {1: [2]}
    # It is gone before its prefill: the next one has no reason to go there.
    del deal_to.sequences[1]
    deal_to.ledger.report(BlockCounts(31, 0, 1))
    assert dealt(pool) == {2: [2]}
    assert not len(deal_to.promised)


def test_a_worker_without_a_prefix_cache_attracts_nobody() -> None:
    pool = pool_of(worker(1), worker(2))
    first = wait_for(pool, 1, [*PREFIX, 7])
    deal(pool, POLICY, 0.0)
    put(pool, 1, first)
    pool.workers[1].tokens = 100
    wait_for(pool, 2, [*PREFIX, 8])
    assert dealt(pool) == {2: [2]}


def swapped_on(pool: Pool, link: int, key: int, length: int) -> Sequence:
    sequence = wait_for(pool, key, [1] * length, kept_on=link, swapped=True, kept_blocks=-(-length // 4))
    pool.workers[link].kept[key] = sequence
    return sequence


def test_a_swapped_one_goes_back_to_its_own_worker() -> None:
    pool = pool_of(worker(1), worker(2))
    busy(pool, 2, 30)
    swapped_on(pool, 2, 1, 10)
    assert dealt(pool) == {2: [1]}


def test_a_swapped_one_that_has_to_wait_holds_up_its_own_worker_only() -> None:
    pool = pool_of(worker(1), worker(2))
    put(pool, 1, wait_for(pool, 8, [1]))
    pool.workers[1].ledger.report(BlockCounts(4, 0, 28))
    swapped_on(pool, 1, 1, 30)
    wait_for(pool, 2, [1])
    wait_for(pool, 3, [1])
    assert dealt(pool) == {2: [2, 3]}
    # Without a slot there, too.
    pool = pool_of(worker(1, max_num_seqs=1), worker(2))
    put(pool, 1, wait_for(pool, 8, [1]))
    swapped_on(pool, 1, 1, 4)
    wait_for(pool, 2, [1])
    assert dealt(pool) == {2: [2]}


def suspect(pool: Pool, key: int) -> Sequence:
    return wait_for(pool, key, [1], losses=MAX_LOSSES - 1, length_at_loss=1)


def test_a_suspect_goes_to_an_empty_worker_and_stays_alone_until_it_has_a_token() -> None:
    pool = pool_of(worker(1), worker(2))
    put(pool, 1, wait_for(pool, 8, [1]))
    one = suspect(pool, 1)
    assert dealt(pool) == {2: [1]}
    put(pool, 2, one)
    wait_for(pool, 2, [1])
    assert dealt(pool) == {1: [2]}
    assert pool.workers[2].guarded
    one.token_ids.append(5)
    assert not pool.workers[2].guarded


def test_nobody_goes_where_a_suspect_has_just_been_dealt() -> None:
    pool = pool_of(worker(1))
    suspect(pool, 1)
    wait_for(pool, 2, [1])
    assert dealt(pool) == {1: [1]}


def test_a_suspect_keeps_one_worker_free_and_leaves_the_others_open() -> None:
    pool = pool_of(worker(1), worker(2), worker(3))
    for key, link in enumerate((1, 1, 2, 3, 3), 10):
        put(pool, link, wait_for(pool, key, [1]))
    suspect(pool, 1)
    suspect(pool, 2)
    for key in range(3, 7):
        wait_for(pool, key, [1])
    # Both wait for the one where there is least; the others take what is behind them.
    given = dealt(pool)
    assert sorted(given) == [1, 3]
    assert sorted(key for each in given.values() for key in each) == [3, 4, 5, 6]
    del pool.workers[2].sequences[12]
    assert dealt(pool)[2] == [1]


def test_requests_follow_their_prefix_through_the_mesh() -> None:
    infos = [worker_info(num_blocks=200, max_num_seqs=16, max_num_batched_tokens=64)] * 2
    mesh = VirtualMesh(infos, policy=Policy(0, 0))
    gateway = mesh.attach_gateway()
    workers = [mesh.attach_worker(index) for index in range(2)]
    tenants = [[tenant] * 40 for tenant in (1, 2)]
    for key in range(12):
        prompt = [*tenants[key % 2], *range(10, 14), 20 + key]
        mesh.at(0.1 * key, lambda key=key, prompt=prompt: mesh.submit(gateway, submission(key, prompt)))
    settle(mesh)
    for call in gateway.calls.values():
        judge(call)
    # Each prefix was computed once, on a worker of its own.
    computed = sorted(each.tokens_prefilled for each in workers)
    assert computed == [45 + 5, 45 + 5]


def silent(pool: Pool, link: int) -> Worker:
    """A worker with work that has reported nothing since 0."""
    busy(pool, link, 1)
    return pool.workers[link]


def learn(worker: Worker, seconds: float) -> None:
    for tokens in range(1, 20):
        worker.step_times.observe(tokens, 0, seconds)


def test_who_is_silent_for_many_steps_is_late() -> None:
    pool = pool_of(worker(1), worker(2))
    assert not late(pool.workers[2], 1000.0)
    hung = silent(pool, 1)
    assert not late(hung, LATE_SECONDS_UNKNOWN)
    assert late(hung, LATE_SECONDS_UNKNOWN + 0.1)
    learn(hung, 0.02)
    assert not late(hung, LATE_SECONDS)
    assert late(hung, LATE_SECONDS + 0.1)
    hung.heard_at = LATE_SECONDS
    assert not late(hung, LATE_SECONDS + 0.1)


def test_a_long_step_is_not_late_before_it_can_be_over() -> None:
    pool = pool_of(worker(1))
    hung = silent(pool, 1)
    for tokens in range(1, 20):
        hung.step_times.observe(tokens, 0, 0.1 * tokens)
    hung.window.send(1, {EARLIEST: 18}, revoke=False)
    assert not late(hung, LATE_STEPS * 1.9 - 0.5)
    assert late(hung, LATE_STEPS * 1.9 + 1)


def test_nothing_goes_to_who_is_late_while_another_one_can_take_it() -> None:
    pool = pool_of(worker(1), worker(2, max_num_seqs=2))
    learn(silent(pool, 1), 0.02)
    # The other one has more to do.
    pool.workers[2].heard_at = 50.0
    busy(pool, 2, 12)
    wait_for(pool, 1, [1] * 4)
    assert dealt(pool, 0.5) == {1: [1]}
    assert dealt(pool, 50.0) == {2: [1]}
    # It waits for a place there, rather.
    put(pool, 2, wait_for(pool, 98, [9] * 4))
    assert dealt(pool, 50.0) == {}
    pool.workers[1].heard_at = 50.0
    assert dealt(pool, 50.0) == {1: [1]}


def test_who_is_late_takes_what_no_other_can_run() -> None:
    pool = pool_of(worker(1), worker(2, num_blocks=8))
    learn(silent(pool, 1), 0.02)
    wait_for(pool, 1, [1] * 40)
    wait_for(pool, 2, [1] * 4)
    assert dealt(pool, 50.0) == {1: [1], 2: [2]}


def test_of_workers_that_are_all_late_each_is_as_good_as_any() -> None:
    pool = pool_of(worker(1), worker(2))
    for link in (1, 2):
        learn(silent(pool, link), 0.02)
    wait_for(pool, 1, [1] * 4)
    assert len(dealt(pool, 50.0)) == 1
