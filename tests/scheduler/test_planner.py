"""The planner as a function: each rule by itself, then all of them on random arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.first_step import Candidate, Prefill
from scheduler.plan_length import MAX_PLAN_SECONDS, MAX_STEPS, least_steps
from scheduler.planner import NOTHING, UNKNOWN, Credits, Decision, Forecast, Running, make_plan
from scheduler.policy import LEAST_PREFILL_TOKENS, Limits, Policy
from scheduler.step_time import CAUTIOUS_TOKENS

LIMITS = Limits(max_num_seqs=8, max_num_batched_tokens=64, block_size=4)
POLICY = Policy(num_steps=8, max_prefill_tokens=0)
ADAPTIVE = Policy(num_steps=0, max_prefill_tokens=0)
PLENTY = 1000


class Row(NamedTuple):
    """One running sequence; `left`: tokens of its prefill, 0: it decodes; `forks` wait for it, and lend their slots if
    `before_end` of its tokens surely do not complete it."""

    key: int
    left: int
    tokens: int
    max_length: int
    steps_left: int
    reserved: int
    joined: bool = True
    forks: int = 0
    before_end: int | None = None

    @property
    def lent(self) -> int:
        return 0 if self.before_end is None else self.forks


def decoder(key: int, tokens: int = 10, steps_left: int = 50, max_length: int = 200) -> Row:
    return Row(key, 0, tokens, max_length, steps_left, -(-tokens // 4))


def prefill(key: int, left: int, tokens: int = 100, *, joined: bool = True, forks: int = 0) -> Row:
    return Row(key, left, tokens, 200, 200 - tokens, -(-tokens // 4) * (1 + forks), joined, forks)


def candidate(key: int, tokens: int, max_length: int, place: float = 99.0, **changes: Any) -> Candidate:
    """A newcomer; behind all that run unless `place` says otherwise."""
    return Candidate(key, (place, key), tokens, max_length, **changes)


def columns(*rows: Row, lone: bool | None = None) -> Running:
    """What the planner sees of them."""
    decoding = [row for row in rows if not row.left]
    ends = [row.steps_left for row in decoding]
    prefills = [
        Prefill(row.key, (float(row.key), row.key), row.left, row.steps_left, row.joined, row.lent, row.before_end or 0)
        for row in rows
        if row.left
    ]
    return Running(
        sequence_ids=[row.key * 10 + index for row in rows for index in range(1 + row.forks)],
        tokens=[row.tokens for row in rows for _ in range(1 + row.forks)],
        max_lengths=[row.max_length for row in rows for _ in range(1 + row.forks)],
        reserved=sum(row.reserved for row in rows),
        prefills=prefills,
        decoding=len(decoding),
        last_end=max(ends, default=0),
        first_end=min((end for end in ends if end), default=0),
        lone=len(rows) == 1 and not rows[0].forks if lone is None else lone,
    )


def in_turn(rows: Sequence[Row], waiting: Sequence[Candidate]) -> list[int]:
    """The keys of all as they are served: newcomers as given, others before the first of these that is less urgent."""
    keys = [each.sequence_id for each in waiting]
    for row in sorted(rows, key=lambda row: row.key, reverse=True):
        behind = [index for index, each in enumerate(waiting) if each.place > (float(row.key), row.key)]
        follower = keys.index(waiting[behind[0]].sequence_id) if behind else len(keys)
        # Those that are less urgent were put in before it, and come behind it.
        before = [keys.index(other.key) for other in rows if other.key > row.key]
        keys.insert(min([follower, *before]), row.key)
    return keys


def credits_for(available: int, sequences: int, *, settled: bool = True) -> Credits:
    return Credits(available, sequences, settled)


def test_nothing_to_do() -> None:
    assert make_plan(columns(), [], credits_for(PLENTY, 0), LIMITS, POLICY) == NOTHING
    assert make_plan(columns(decoder(1, steps_left=0)), [], credits_for(PLENTY, 1), LIMITS, POLICY) == NOTHING


def test_decoders_get_all_steps_but_no_more_than_the_longest_needs() -> None:
    running = columns(decoder(1, steps_left=3), decoder(2, steps_left=5))
    assert make_plan(running, [], credits_for(PLENTY, 2), LIMITS, POLICY).num_steps == 5
    running = columns(decoder(1, steps_left=3), decoder(2, steps_left=50))
    decision = make_plan(running, [], credits_for(PLENTY, 2), LIMITS, POLICY)
    assert (decision.num_steps, decision.chunks, decision.join) == (8, (), ())


def test_a_prompt_that_fits_starts_and_joins_and_decodes_in_the_same_plan() -> None:
    decision = make_plan(columns(decoder(1)), [candidate(2, 20, 30)], credits_for(PLENTY, 1), LIMITS, POLICY)
    assert decision.chunks == ((2, 20),)
    assert decision.join == decision.start == (2,)
    assert decision.num_steps == 8


def test_newcomers_are_served_as_they_are_given_whatever_their_places() -> None:
    waiting = [candidate(5, 10, 20, 9.0), candidate(4, 10, 20, 1.0), candidate(6, 10, 20, 3.0)]
    decision = make_plan(columns(prefill(2, 10), prefill(12, 10)), waiting, credits_for(PLENTY, 2), LIMITS, POLICY)
    # One prefill is more urgent than the first of them, the other than none.
    assert [key for key, _ in decision.chunks] == [2, 5, 4, 6, 12]
    assert decision.start == (5, 4, 6)


def test_a_class_has_its_part_of_a_step_with_decodes_and_holds_up_nobody() -> None:
    rag = {"class_name": "rag", "class_tokens": 12}
    begun = Prefill(2, (2.0, 2), 30, 100, joined=True, class_name="rag", class_tokens=12)
    waiting = [candidate(4, 8, 20, **rag), candidate(5, 8, 20, **rag), candidate(6, 8, 20)]

    def chunks(*rows: Row, prefills: tuple[Prefill, ...] = (), num_steps: int = 1) -> tuple[tuple[int, int], ...]:
        running = replace(columns(*rows), prefills=prefills)
        decision = make_plan(running, waiting, credits_for(PLENTY, 1), LIMITS, Policy(8, 40))
        assert decision.num_steps == num_steps
        assert set(decision.start) == set(dict(decision.chunks)) - {2}
        return decision.chunks

    assert chunks(decoder(1)) == ((4, 8), (5, 4), (6, 8))
    assert chunks(decoder(1), prefills=(begun,)) == ((2, 12), (6, 8))
    assert chunks(decoder(1), prefills=(begun._replace(left=9),)) == ((2, 9), (4, 3), (6, 8))
    # Nobody decodes: there is no gap to keep short.
    assert chunks(num_steps=8) == ((4, 8), (5, 8), (6, 8))


def test_beside_a_first_token_that_is_owed_others_of_its_class_wait_a_step() -> None:
    chat = {"class_name": "chat"}
    rest = Prefill(2, (2.0, 2), 30, 100, joined=True, class_name="chat")
    owed = candidate(9, 10, 20, 1.0, owed_turn=True, **chat)
    behind = [candidate(11, 8, 20, **chat), candidate(12, 8, 20, class_name="rag")]

    def plan(newcomer: Candidate, *, rest_waited: bool = False) -> Decision:
        running, forecast = replace(columns(decoder(1)), prefills=(rest,)), Forecast(rest_waited=rest_waited)
        return make_plan(running, [newcomer, *behind], credits_for(PLENTY, 2), LIMITS, Policy(8, 40), forecast)

    def chunks(newcomer: Candidate, *, rest_waited: bool = False) -> tuple[tuple[int, int], ...]:
        decision = plan(newcomer, rest_waited=rest_waited)
        assert decision.num_steps == 1
        return decision.chunks

    assert chunks(owed) == ((9, 10), (12, 8))
    assert chunks(owed._replace(owed_turn=False)) == ((9, 10), (2, 30))
    # That is told, so that they do not wait for ever.
    assert not plan(owed._replace(owed_turn=False)).rest_waits
    assert plan(owed).rest_waits
    assert chunks(owed, rest_waited=True) == ((9, 10), (2, 30))
    # As long as it gets none they have what it leaves.
    assert chunks(owed._replace(place=(99.0, 9), tokens=38)) == ((2, 30), (9, 10))


def test_while_one_to_whom_something_is_owed_is_likely_to_come_the_others_compute_half_of_what_they_have_to() -> None:
    rest = Prefill(2, (2.0, 2), 24, 100, joined=True, class_name="chat")
    waiting = [candidate(9, 30, 50, class_name="chat"), candidate(10, 5, 20, class_name="rag")]
    running = replace(columns(decoder(1)), prefills=(rest,))

    def chunks(*awaited: str, running: Running = running, newcomers: list[Candidate] = waiting) -> dict[int, int]:
        forecast = Forecast(awaited=awaited)
        return dict(make_plan(running, newcomers, credits_for(PLENTY, 2), LIMITS, Policy(8, 60), forecast).chunks)

    assert chunks() == {2: 24, 9: 30, 10: 5}
    assert chunks("rag") == {2: 24, 9: 30, 10: 5}
    assert chunks("chat") == {2: 24, 9: 3, 10: 5}
    # One that is owed is not held back.
    assert chunks("chat", newcomers=[waiting[0]._replace(owed_turn=True)]) == {2: 16, 9: 30}
    # Where nobody decodes there is no step to keep short.
    assert chunks("chat", running=replace(running, decoding=0)) == {2: 24, 9: 30, 10: 5}


def test_a_plan_is_as_long_as_the_classes_in_it_allow() -> None:
    running = replace(columns(decoder(1), decoder(2)), max_steps=3)
    assert make_plan(running, [], credits_for(PLENTY, 2), LIMITS, POLICY).num_steps == 3
    long_quiet = Forecast(quiet_steps=30, step_seconds=0.001)
    assert make_plan(running, [], credits_for(PLENTY, 2), LIMITS, ADAPTIVE, long_quiet).num_steps == 3
    assert make_plan(running, [], credits_for(PLENTY, 2), LIMITS, Policy(2, 0)).num_steps == 2


def test_a_prompt_that_does_not_fit_takes_what_is_left_and_keeps_the_plan_short() -> None:
    decision = make_plan(columns(decoder(1)), [candidate(2, 100, 130)], credits_for(PLENTY, 1), LIMITS, POLICY)
    assert decision.chunks == ((2, 63),)
    assert decision.num_steps == 1


def test_prefills_and_newcomers_are_served_by_their_places() -> None:
    running = columns(prefill(3, 40), prefill(2, 40), decoder(1))
    decision = make_plan(running, [candidate(4, 10, 20)], credits_for(PLENTY, 3), LIMITS, POLICY)
    # 64 tokens, one set aside for each of three: 61 + the one of each that gets a chunk.
    assert decision.chunks == ((2, 40), (3, 23))
    assert decision.start == ()
    assert decision.num_steps == 1
    # The newcomer between them has a token of its own to bring, and leaves them theirs.
    first = make_plan(running, [candidate(4, 10, 20, -1.0)], credits_for(PLENTY, 3), LIMITS, POLICY)
    assert first.chunks == ((4, 10), (2, 40), (3, 13))
    assert (first.start, first.join) == ((4,), (4,))
    large = make_plan(running, [candidate(4, 100, 120, -1.0)], credits_for(PLENTY, 3), LIMITS, POLICY)
    assert large.chunks == ((4, 61), (2, 1), (3, 1))


def test_a_newcomer_without_room_holds_up_newcomers_but_no_prefill() -> None:
    waiting = [candidate(3, 60, 100, -2.0), candidate(4, 1, 4, -1.0)]
    decision = make_plan(columns(prefill(2, 40)), waiting, credits_for(10, 1), LIMITS, POLICY)
    assert (decision.chunks, decision.start) == (((2, 40),), ())
    # Nor one that cannot have a token of the step.
    policy = Policy(num_steps=8, max_prefill_tokens=16)
    back = [candidate(3, 20, 30, -3.0), candidate(4, 10, 30, -2.0), candidate(5, 10, 30, -1.0, kept=True)]
    decision = make_plan(columns(decoder(1), prefill(2, 40)), back, credits_for(PLENTY, 2), LIMITS, policy)
    assert (decision.chunks, decision.start) == (((3, 16),), (3,))


def test_the_prefill_cap_holds_only_while_something_decodes() -> None:
    policy = Policy(num_steps=8, max_prefill_tokens=16)
    decision = make_plan(columns(decoder(1), prefill(2, 40)), [], credits_for(PLENTY, 2), LIMITS, policy)
    assert decision.chunks == ((2, 16),)
    decision = make_plan(columns(prefill(2, 40)), [], credits_for(PLENTY, 1), LIMITS, policy)
    assert decision.chunks == ((2, 40),)


def test_without_a_fixed_cap_prefill_takes_what_the_forecast_leaves() -> None:
    wide = Limits(max_num_seqs=8, max_num_batched_tokens=4096, block_size=4)
    running = columns(decoder(1), prefill(2, 3000))

    def chunk(forecast: Forecast) -> int:
        ((_, count),) = make_plan(running, [], credits_for(PLENTY, 2), wide, POLICY, forecast).chunks
        return count

    assert chunk(UNKNOWN) == CAUTIOUS_TOKENS
    assert chunk(Forecast(mixed_tokens=500)) == 500
    # It advances though the decodes alone take longer than a mixed step should.
    assert chunk(Forecast(mixed_tokens=-7)) == LEAST_PREFILL_TOKENS
    alone = make_plan(columns(prefill(2, 3000)), [], credits_for(PLENTY, 1), wide, POLICY, Forecast(mixed_tokens=50))
    assert alone.chunks == ((2, 3000),)


def test_what_is_passed_does_not_make_the_step_long_for_who_passes() -> None:
    wide = Limits(max_num_seqs=8, max_num_batched_tokens=2048, block_size=4)

    def chunks(*rows: Row, newcomer: int, forecast: Forecast, place: float = -1.0) -> tuple[tuple[int, int], ...]:
        waiting = [Candidate(9, (place, 9), newcomer, newcomer + 50)]
        return make_plan(columns(*rows), waiting, credits_for(PLENTY, 1), wide, POLICY, forecast).chunks

    known = Forecast(mixed_tokens=500)
    assert chunks(prefill(2, 9000), newcomer=100, forecast=known) == ((9, 100), (2, 400))
    assert chunks(prefill(2, 9000), newcomer=100, forecast=UNKNOWN) == ((9, 100), (2, CAUTIOUS_TOKENS - 100))
    # No room is left for it in a short step: it has its turn in the next one.
    assert chunks(prefill(2, 9000), newcomer=600, forecast=known) == ((9, 600),)
    # The newcomer has no token to wait for yet, or passes nobody.
    assert chunks(prefill(2, 9000), newcomer=3000, forecast=known) == ((9, 2047), (2, 1))
    assert chunks(prefill(2, 1000), newcomer=100, forecast=known, place=5.0) == ((2, 1000), (9, 100))


def test_a_lost_join_is_sent_again_with_the_chunk() -> None:
    decision = make_plan(columns(prefill(2, 40, joined=False)), [], credits_for(PLENTY, 1), LIMITS, POLICY)
    assert decision.join == (2,)
    assert decision.start == ()


def test_one_that_came_back_from_host_memory_only_has_to_join() -> None:
    running = Running([2], [10], [60], 3, [Prefill(2, (0.0, 2), 0, 50, joined=False)], 0, 0, 0, lone=True)
    decision = make_plan(running, [], credits_for(PLENTY, 1), LIMITS, POLICY)
    assert (decision.num_steps, decision.chunks, decision.join) == (8, (), (2,))


def test_short_credits_mean_fewer_steps() -> None:
    # Reserved 3 blocks = 12 tokens each, 12 held: every step into a new block costs one each.
    running = columns(decoder(1, tokens=12), decoder(2, tokens=12))
    assert make_plan(running, [], credits_for(4, 2), LIMITS, POLICY).num_steps == 8
    assert make_plan(running, [], credits_for(3, 2), LIMITS, POLICY).num_steps == 4
    assert make_plan(running, [], credits_for(2, 2), LIMITS, POLICY).num_steps == 4


def test_too_few_credits_for_one_step_are_a_shortage() -> None:
    running = columns(*(decoder(key, tokens=12) for key in (1, 2, 3)))
    decision = make_plan(running, [], credits_for(2, 3), LIMITS, POLICY)
    assert (decision.shortage, decision.num_steps) == (1, 0)


def test_there_is_no_shortage_while_blocks_may_still_come_back() -> None:
    running = columns(decoder(1, tokens=12), decoder(2, tokens=12))
    assert make_plan(running, [], credits_for(1, 2, settled=False), LIMITS, POLICY) == NOTHING


def test_a_sequence_alone_always_advances() -> None:
    assert make_plan(columns(decoder(1, tokens=12)), [], credits_for(0, 1), LIMITS, POLICY).num_steps == 8
    decision = make_plan(columns(), [candidate(1, 100, 130)], credits_for(0, 0), LIMITS, POLICY)
    assert decision.start == (1,)


def test_a_newcomer_leaves_every_running_sequence_a_block_to_grow_by() -> None:
    waiting = [candidate(2, 7, 20)]
    assert make_plan(columns(decoder(1)), waiting, credits_for(3, 1), LIMITS, POLICY).start == (2,)
    assert make_plan(columns(decoder(1)), waiting, credits_for(2, 1), LIMITS, POLICY).start == ()


def test_order_is_strict_when_the_next_does_not_fit() -> None:
    waiting = [candidate(2, 60, 100), candidate(3, 1, 4)]
    assert make_plan(columns(decoder(1)), waiting, credits_for(10, 1), LIMITS, POLICY).start == ()


def test_slots_are_bounded_by_sequences_and_by_tokens() -> None:
    running = columns(*(decoder(key) for key in range(8)))
    assert make_plan(running, [candidate(9, 1, 4)], credits_for(PLENTY, 8), LIMITS, POLICY).start == ()
    narrow = Limits(max_num_seqs=8, max_num_batched_tokens=2, block_size=4)
    waiting = [candidate(key, 1, 4) for key in range(4)]
    assert make_plan(columns(), waiting, credits_for(PLENTY, 0), narrow, POLICY).start == (0, 1)


def test_a_group_starts_whole_or_not_at_all() -> None:
    group = candidate(9, 10, 30, members=4)
    running = columns(*(decoder(key) for key in range(4)))
    decision = make_plan(running, [group], credits_for(PLENTY, 4), LIMITS, POLICY)
    assert (decision.start, decision.join, decision.chunks) == ((9,), (9,), ((9, 10),))
    running = columns(*(decoder(key) for key in range(5)))
    assert make_plan(running, [group], credits_for(PLENTY, 5), LIMITS, POLICY).start == ()
    # Three blocks for 11 tokens, and one for each fork: it shares the two full ones.
    assert group.blocks(1, 4) == 6
    running = columns(decoder(1))
    assert make_plan(running, [group], credits_for(7, 1), LIMITS, POLICY).start == (9,)
    assert make_plan(running, [group], credits_for(6, 1), LIMITS, POLICY).start == ()


def test_forks_that_wait_have_a_token_of_the_step_each() -> None:
    group = candidate(9, 100, 130, members=4)
    assert make_plan(columns(), [group], credits_for(PLENTY, 0), LIMITS, POLICY).chunks == ((9, 61),)
    running = columns(prefill(9, 100, forks=3))
    assert make_plan(running, [], credits_for(PLENTY, 4), LIMITS, POLICY).chunks == ((9, 61),)


def test_a_swapped_one_comes_back_without_a_chunk() -> None:
    decision = make_plan(columns(decoder(1)), [candidate(2, 20, 30, kept=True)], credits_for(PLENTY, 1), LIMITS, POLICY)
    assert (decision.start, decision.join, decision.chunks, decision.num_steps) == ((2,), (2,), (), 8)
    # It needs credit for all that it brings.
    waiting = [candidate(2, 20, 30, kept=True)]
    assert make_plan(columns(decoder(1)), waiting, credits_for(7, 1), LIMITS, POLICY).start == (2,)
    assert make_plan(columns(decoder(1)), waiting, credits_for(6, 1), LIMITS, POLICY).start == ()


def test_a_plan_is_as_long_as_the_quiet_before_it() -> None:
    running = columns(decoder(1))
    lengths = [
        make_plan(running, [], credits_for(PLENTY, 1), LIMITS, ADAPTIVE, Forecast(quiet, 0.01)).num_steps
        for quiet in (0, 3, 6, 20, 1000)
    ]
    assert lengths == [2, 3, 6, 20, 25]


def test_a_crowded_worker_plans_to_the_first_end() -> None:
    running = columns(decoder(1, steps_left=6), decoder(2))
    quiet = Forecast(32, 0.004)
    assert make_plan(running, [], credits_for(PLENTY, 2), LIMITS, ADAPTIVE, quiet).num_steps == 32
    crowded = Forecast(32, 0.004, crowded=True)
    assert make_plan(running, [], credits_for(PLENTY, 2), LIMITS, ADAPTIVE, crowded).num_steps == 6
    # Never so short that planning shows.
    soon = columns(decoder(1, steps_left=1), decoder(2))
    assert make_plan(soon, [], credits_for(PLENTY, 2), LIMITS, ADAPTIVE, crowded).num_steps == 2
    # A fixed length is what the operator says.
    assert make_plan(soon, [], credits_for(PLENTY, 2), LIMITS, POLICY, crowded).num_steps == 8


def blocks(tokens: int, max_length: int, size: int) -> int:
    return -(-min(tokens, max_length) // size)


@st.composite
def running_sequences(draw: st.DrawFn, size: int) -> list[Row]:
    rows = []
    for key in range(draw(st.integers(0, 6))):
        tokens = draw(st.integers(1, 40))
        max_length = tokens + draw(st.integers(0, 20))
        left = draw(st.integers(0, 40))
        forks = draw(st.integers(0, 2)) if left else 0
        reserved = (1 + forks) * blocks(tokens, max_length, size) + draw(st.integers(-1, 1))
        steps_left = draw(st.integers(0, max_length))
        before_end = draw(st.none() | st.integers(0, left - 1)) if forks else None
        rows.append(Row(key, left, tokens, max_length, steps_left, reserved, draw(st.booleans()), forks, before_end))
    return rows


@settings(max_examples=400)
@given(data=st.data())
def test_every_decision_keeps_the_rules(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 4, 16]))
    rows = data.draw(running_sequences(size))
    count = sum(1 + row.forks for row in rows)
    lent = sum(row.lent for row in rows)
    limits = Limits(
        max_num_seqs=data.draw(st.integers(max(1, count - lent), 24)),
        max_num_batched_tokens=data.draw(st.integers(max(1, count - lent), 80)),
        block_size=size,
    )
    policy = Policy(data.draw(st.integers(0, 40)), data.draw(st.sampled_from([0, 1, 7])))
    forecast = Forecast(
        data.draw(st.integers(0, 50)),
        data.draw(st.sampled_from([None, 0.0005, 0.002, 0.04, 1.0])),
        data.draw(st.sampled_from([None, -3, 5, 40])),
        data.draw(st.booleans()),
    )
    # Prefills have the urgencies 0, 1, 2, ...: newcomers are more urgent than some, and less than others.
    waiting = [
        candidate(
            100 + index,
            tokens,
            tokens + data.draw(st.integers(1, 30)),
            place,
            members=1 if kept else data.draw(st.integers(1, 3)),
            kept=kept,
        )
        for index, (place, tokens, kept) in enumerate(
            data.draw(st.lists(st.tuples(st.integers(-1, 6), st.integers(1, 50), st.booleans()), max_size=4))
        )
    ]
    # Fairness may have put them in any order.
    waiting = data.draw(st.permutations(waiting))
    releasing = data.draw(st.integers(0, 2))
    settled = not releasing and data.draw(st.booleans())
    account = Credits(data.draw(st.integers(-5, 120)), count + releasing, settled)
    lone = len(rows) == 1 and not releasing and (not rows[0].forks or data.draw(st.booleans()))
    running = columns(*rows, lone=lone)
    decision = make_plan(running, waiting, account, limits, policy, forecast)
    assert decision == make_plan(running, waiting, account, limits, policy, forecast)

    by_key = {row.key: row for row in rows}
    starts = {each.sequence_id: each for each in waiting[: len(decision.start)]}
    assert tuple(starts) == decision.start
    started = sum(each.members for each in starts.values())
    chunks = dict(decision.chunks)
    assert len(chunks) == len(decision.chunks)
    # Each takes its slots when it is its turn; a group that has lent them is not complete before they are free.
    slots = limits.max_running - (account.sequences - lent)
    owed = set()
    place = {key: index for index, key in enumerate(in_turn(rows, waiting))}
    served_or_running = [key for key in place if key in by_key or key in starts]
    for key in served_or_running:
        slots -= by_key[key].lent if key in by_key else starts[key].members
        if key in starts:
            assert slots >= 0
        elif by_key[key].lent and slots < 0:
            owed.add(key)
            assert chunks.get(key, 0) <= (by_key[key].before_end or 0)
    growth = sum((1 + row.forks) * blocks(row.tokens + 1, row.max_length, size) - row.reserved for row in rows)
    if decision.shortage:
        assert decision.num_steps == 0
        assert settled
        assert not lone
        assert decision.shortage == growth - account.available
        return
    if not decision.num_steps:
        assert decision == NOTHING
        short = growth > account.available
        idle = not any(row.left or row.steps_left for row in rows if row.key not in owed)
        assert (short and not settled and not lone) or idle
        fits = waiting and waiting[0].members <= limits.max_running
        assert not (idle and fits and not account.sequences), "an empty worker starts what waits"
        return
    # A fixed length is obeyed, an adaptive one has its bounds.
    assert 1 <= decision.num_steps <= (policy.num_steps or MAX_STEPS)
    if not policy.num_steps and forecast.step_seconds and decision.num_steps > 1:
        assert decision.num_steps * forecast.step_seconds <= MAX_PLAN_SECONDS
        assert decision.num_steps <= max(forecast.quiet_steps, least_steps(forecast.step_seconds))
    # Worst case within credits; what is alone may always do what admission has checked.
    grown = sum(
        (1 + row.forks) * blocks(row.tokens + decision.num_steps, row.max_length, size) - row.reserved for row in rows
    )
    grown += sum(each.blocks(decision.num_steps, size) for each in starts.values())
    first_alone = not account.sequences and len(starts) == 1
    assert grown <= account.available or ((lone or first_alone) and (count + started == 1 or decision.num_steps == 1))
    # Token budget of the first step, whoever decodes in it.
    deciding = sum((1 + row.forks - row.lent) - (row.key in chunks) for row in rows)
    deciding += sum(each.members - (each.sequence_id in chunks) for each in starts.values())
    assert sum(chunks.values()) + deciding <= limits.max_num_batched_tokens
    known = CAUTIOUS_TOKENS if forecast.mixed_tokens is None else max(LEAST_PREFILL_TOKENS, forecast.mixed_tokens)
    cap = policy.max_prefill_tokens or known
    if any(not row.left for row in rows):
        assert sum(chunks.values()) <= cap
    for key, tokens in chunks.items():
        assert 1 <= tokens <= (by_key[key].left if key in by_key else starts[key].tokens)
        assert key in by_key or not starts[key].kept
    # Prefill that is left over makes the plan short.
    if decision.num_steps > 1:
        assert all(row.left <= chunks.get(row.key, 0) for row in rows if row.key not in owed)
        assert not owed & chunks.keys()
        assert all(each.kept or chunks[key] == each.tokens for key, each in starts.items())
    # Joins: the new ones, and those in doubt that get a chunk.
    assert set(decision.join) == set(starts) | {key for key in chunks if key in by_key and not by_key[key].joined}
    # Served in turn, and the first of all that has room advances.
    assert [place[key] for key in chunks] == sorted(place[key] for key in chunks)
    prefilling = [row.key for row in rows if row.left and (row.key not in owed or row.key in chunks)]
    served = sorted([*prefilling, *starts], key=place.__getitem__)
    if served:
        assert served[0] in chunks or starts[served[0]].kept
    # Nobody takes what one before it still needs.
    missing = [
        key
        for key in served
        if key in chunks and key not in owed
        if chunks[key] < (by_key[key].left if key in by_key else starts[key].tokens)
    ]
    for key in missing:
        behind = [each for each in served[served.index(key) + 1 :] if each in chunks]
        assert all(each in by_key and chunks[each] == 1 for each in behind)
    # From the first that is passed by one that gets a token now, prefill is capped; so is what it leaves to newcomers.
    newest, before, passed = 0, 0, False
    for key in (key for key in place if key not in by_key or by_key[key].left):
        # Its key is the place in the order of arrival, too.
        if key < newest:
            passed = True
            assert sum(chunks.values()) <= max(before, cap)
            break
        before += chunks.get(key, 0)
        if key in served and key not in missing and key not in owed:
            newest = max(newest, key)
    # A newcomer that was left behind lacks a slot, a token of the step, or blocks.
    if len(waiting) > len(starts):
        left_out = waiting[len(starts)]
        turn = [key for key in served_or_running if place[key] < place[left_out.sequence_id]]
        slots = limits.max_running - (account.sequences - lent)
        slots -= sum(by_key[key].lent if key in by_key else starts[key].members for key in turn)
        size_now = left_out.blocks(1, size) + count + started
        spare = account.available - growth - sum(each.blocks(1, size) for each in starts.values())
        full = sum(chunks.values()) + deciding + left_out.members > limits.max_num_batched_tokens
        capped = not left_out.kept and (passed or any(not row.left for row in rows))
        assert left_out.members > slots or full or capped or size_now > spare
