"""The planner as a function: each rule by itself, then all of them on random arguments."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.planner import NOTHING, Candidate, Credits, Limits, Policy, Running, make_plan

LIMITS = Limits(max_num_seqs=8, max_num_batched_tokens=64, block_size=4)
POLICY = Policy(num_steps=8, max_prefill_tokens=0)
PLENTY = 1000


def decoder(key: int, tokens: int = 10, steps_left: int = 50, max_length: int = 200) -> Running:
    return Running(key, key, 0, tokens, max_length, steps_left, -(-tokens // 4), True)


def prefill(key: int, left: int, tokens: int = 100, *, joined: bool = True) -> Running:
    return Running(key, key, left, tokens, 200, 200 - tokens, -(-tokens // 4), joined)


def credits_for(available: int, sequences: int, *, settled: bool = True) -> Credits:
    return Credits(available, sequences, settled)


def test_nothing_to_do() -> None:
    assert make_plan([], [], credits_for(PLENTY, 0), LIMITS, POLICY) == NOTHING
    assert make_plan([decoder(1, steps_left=0)], [], credits_for(PLENTY, 1), LIMITS, POLICY) == NOTHING


def test_decoders_get_all_steps_but_no_more_than_the_longest_needs() -> None:
    running = [decoder(1, steps_left=3), decoder(2, steps_left=5)]
    assert make_plan(running, [], credits_for(PLENTY, 2), LIMITS, POLICY).num_steps == 5
    running = [decoder(1, steps_left=3), decoder(2, steps_left=50)]
    decision = make_plan(running, [], credits_for(PLENTY, 2), LIMITS, POLICY)
    assert (decision.num_steps, decision.chunks, decision.join) == (8, (), ())


def test_a_prompt_that_fits_starts_and_joins_and_decodes_in_the_same_plan() -> None:
    decision = make_plan([decoder(1)], [Candidate(2, 20, 30)], credits_for(PLENTY, 1), LIMITS, POLICY)
    assert decision.chunks == ((2, 20),)
    assert decision.join == decision.start == (2,)
    assert decision.num_steps == 8


def test_a_prompt_that_does_not_fit_takes_what_is_left_and_keeps_the_plan_short() -> None:
    decision = make_plan([decoder(1)], [Candidate(2, 100, 130)], credits_for(PLENTY, 1), LIMITS, POLICY)
    assert decision.chunks == ((2, 63),)
    assert decision.num_steps == 1


def test_prefills_are_served_by_arrival_before_new_sequences() -> None:
    running = [prefill(3, 40), prefill(2, 40), decoder(1)]
    decision = make_plan(running, [Candidate(4, 10, 20)], credits_for(PLENTY, 3), LIMITS, POLICY)
    # 64 tokens, one set aside for each of three: 61 + the one of each that gets a chunk.
    assert decision.chunks == ((2, 40), (3, 23))
    assert decision.start == ()
    assert decision.num_steps == 1


def test_the_prefill_cap_holds_only_while_something_decodes() -> None:
    policy = Policy(num_steps=8, max_prefill_tokens=16)
    decision = make_plan([decoder(1), prefill(2, 40)], [], credits_for(PLENTY, 2), LIMITS, policy)
    assert decision.chunks == ((2, 16),)
    decision = make_plan([prefill(2, 40)], [], credits_for(PLENTY, 1), LIMITS, policy)
    assert decision.chunks == ((2, 40),)


def test_a_lost_join_is_sent_again_with_the_chunk() -> None:
    decision = make_plan([prefill(2, 40, joined=False)], [], credits_for(PLENTY, 1), LIMITS, POLICY)
    assert decision.join == (2,)
    assert decision.start == ()


def test_short_credits_mean_fewer_steps() -> None:
    # Reserved 3 blocks = 12 tokens each, 12 held: every step into a new block costs one each.
    running = [decoder(1, tokens=12), decoder(2, tokens=12)]
    assert make_plan(running, [], credits_for(4, 2), LIMITS, POLICY).num_steps == 8
    assert make_plan(running, [], credits_for(3, 2), LIMITS, POLICY).num_steps == 4
    assert make_plan(running, [], credits_for(2, 2), LIMITS, POLICY).num_steps == 4


def test_too_few_credits_for_one_step_preempt_the_latest_arrival() -> None:
    running = [decoder(2, tokens=12), decoder(1, tokens=12), decoder(3, tokens=12)]
    decision = make_plan(running, [], credits_for(2, 3), LIMITS, POLICY)
    assert decision.preempt == (3,)
    assert decision.num_steps == 0


def test_the_oldest_is_never_preempted() -> None:
    running = [decoder(key, tokens=12) for key in (1, 2, 3)]
    assert make_plan(running, [], credits_for(-100, 3), LIMITS, POLICY).preempt == (3, 2)


def test_nothing_is_preempted_while_blocks_may_still_come_back() -> None:
    running = [decoder(1, tokens=12), decoder(2, tokens=12)]
    assert make_plan(running, [], credits_for(1, 2, settled=False), LIMITS, POLICY) == NOTHING


def test_a_sequence_alone_always_advances() -> None:
    assert make_plan([decoder(1, tokens=12)], [], credits_for(0, 1), LIMITS, POLICY).num_steps == 8
    decision = make_plan([], [Candidate(1, 100, 130)], credits_for(0, 0), LIMITS, POLICY)
    assert decision.start == (1,)


def test_a_newcomer_leaves_every_running_sequence_a_block_to_grow_by() -> None:
    candidate = [Candidate(2, 7, 20)]
    assert make_plan([decoder(1)], candidate, credits_for(3, 1), LIMITS, POLICY).start == (2,)
    assert make_plan([decoder(1)], candidate, credits_for(2, 1), LIMITS, POLICY).start == ()


def test_order_is_strict_when_the_next_does_not_fit() -> None:
    waiting = [Candidate(2, 60, 100), Candidate(3, 1, 4)]
    assert make_plan([decoder(1)], waiting, credits_for(10, 1), LIMITS, POLICY).start == ()


def test_slots_are_bounded_by_sequences_and_by_tokens() -> None:
    running = [decoder(key) for key in range(8)]
    assert make_plan(running, [Candidate(9, 1, 4)], credits_for(PLENTY, 8), LIMITS, POLICY).start == ()
    narrow = Limits(max_num_seqs=8, max_num_batched_tokens=2, block_size=4)
    waiting = [Candidate(key, 1, 4) for key in range(4)]
    assert make_plan([], waiting, credits_for(PLENTY, 0), narrow, POLICY).start == (0, 1)


def blocks(tokens: int, max_length: int, size: int) -> int:
    return -(-min(tokens, max_length) // size)


@st.composite
def running_sequences(draw: st.DrawFn, size: int) -> list[Running]:
    out = []
    for key in range(draw(st.integers(0, 6))):
        tokens = draw(st.integers(1, 40))
        max_length = tokens + draw(st.integers(0, 20))
        left = draw(st.integers(0, 40))
        reserved = blocks(tokens, max_length, size) + draw(st.integers(-1, 1))
        steps_left = draw(st.integers(0, max_length))
        out.append(
            Running(key, draw(st.integers(0, 99)), left, tokens, max_length, steps_left, reserved, draw(st.booleans()))
        )
    return out


@settings(max_examples=300)
@given(data=st.data())
def test_every_decision_keeps_the_rules(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 4, 16]))
    running = data.draw(running_sequences(size))
    limits = Limits(
        max_num_seqs=data.draw(st.integers(max(1, len(running)), 10)),
        max_num_batched_tokens=data.draw(st.integers(max(1, len(running)), 60)),
        block_size=size,
    )
    policy = Policy(data.draw(st.integers(1, 32)), data.draw(st.sampled_from([0, 1, 7])))
    waiting = [
        Candidate(100 + index, tokens, tokens + data.draw(st.integers(1, 30)))
        for index, tokens in enumerate(data.draw(st.lists(st.integers(1, 50), max_size=4)))
    ]
    releasing = data.draw(st.integers(0, 2))
    settled = not releasing and data.draw(st.booleans())
    account = Credits(data.draw(st.integers(-5, 80)), len(running) + releasing, settled)
    decision = make_plan(running, waiting, account, limits, policy)
    assert decision == make_plan(running, waiting, account, limits, policy)

    by_key = {each.sequence_id: each for each in running}
    starts = {each.sequence_id: each for each in waiting[: len(decision.start)]}
    assert tuple(starts) == decision.start
    alone = len(running) + releasing + len(starts) == 1
    chunks = dict(decision.chunks)
    assert len(chunks) == len(decision.chunks)
    if decision.preempt:
        assert not decision.num_steps
        assert settled
        oldest = min(each.arrival for each in running)
        kept = [each for each in running if each.sequence_id not in decision.preempt]
        assert kept
        assert any(each.arrival == oldest for each in kept)
        assert max(each.arrival for each in kept) <= min(by_key[key].arrival for key in decision.preempt)
        return
    if not decision.num_steps:
        assert decision == NOTHING
        growth = sum(blocks(each.tokens + 1, each.max_length, size) - each.reserved for each in running)
        short = growth > account.available
        idle = not any(each.prefill_left or each.steps_left for each in running)
        assert (short and not settled and not alone) or idle
        if idle and waiting and not account.sequences:
            raise AssertionError("an empty worker starts what waits")
        return
    assert 1 <= decision.num_steps <= policy.num_steps
    # Worst case within credits.
    grown = sum(blocks(each.tokens + decision.num_steps, each.max_length, size) - each.reserved for each in running)
    grown += sum(blocks(each.tokens + decision.num_steps, each.max_length, size) for each in starts.values())
    assert alone or grown <= account.available
    # Token budget of the first step, whoever decodes in it.
    assert sum(chunks.values()) + sum(key not in chunks for key in by_key) <= limits.max_num_batched_tokens
    assert len(running) + len(starts) <= limits.max_running
    if policy.max_prefill_tokens and any(not each.prefill_left for each in running):
        assert sum(chunks.values()) <= policy.max_prefill_tokens
    for key, count in chunks.items():
        assert 1 <= count <= (by_key[key].prefill_left if key in by_key else starts[key].tokens)
    # Prefill that is left over makes the plan short.
    if decision.num_steps > 1:
        assert all(each.prefill_left <= chunks.get(each.sequence_id, 0) for each in running)
        assert all(chunks[key] == each.tokens for key, each in starts.items())
    # Joins: the new ones, and those in doubt that get a chunk.
    assert set(decision.join) == set(starts) | {key for key in chunks if key in by_key and not by_key[key].joined}
    # The oldest prefill advances.
    prefilling = [each for each in running if each.prefill_left]
    if prefilling:
        assert min(each.arrival for each in prefilling) in {by_key[key].arrival for key in chunks if key in by_key}
