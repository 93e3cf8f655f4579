"""The planner as a function: each rule by itself."""

from __future__ import annotations

from dataclasses import replace

from planned import ADAPTIVE, LIMITS, PLENTY, POLICY, Row, candidate, columns, credits_for, decoder, prefill

from scheduler.first_step import Candidate, Prefill
from scheduler.planner import NOTHING, UNKNOWN, Decision, Forecast, Running, make_plan
from scheduler.policy import LEAST_PREFILL_TOKENS, Limits, Policy
from scheduler.step_time import CAUTIOUS_TOKENS


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
