"""Buckets against slow exact ones, and what a tenant is told when one is empty."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.quota import MINUTE_S, Bucket, Reservation, TokenBucket
from scheduler.tenant import NamedPlan
from scheduler.usage import (
    OUTPUTS_KNOWN,
    Demand,
    Usage,
    fresh_usage,
)
from tercet import errors
from tercet.retry import LONGEST_RETRY_SECONDS, SHORTEST_RETRY_SECONDS, UNKNOWN_RETRY_SECONDS
from tercet.tenants.plan import DEBT

LIMIT = 600
RATE = LIMIT / MINUTE_S


def usage_of(**limits: Any) -> Usage:
    return fresh_usage(NamedPlan("a", **limits), 0.0)


def refusal_of(usage: Usage, demand: Demand, now: float = 0.0) -> errors.TenantQuotaError:
    before = copy.deepcopy(usage)
    with pytest.raises(errors.TenantQuotaError) as caught:
        usage.check(demand, "rag", now)
    assert fields(usage) == fields(before)
    return caught.value


def fields(usage: Usage) -> tuple[object, ...]:
    """All that a refusal must leave as it is."""
    tokens, requests = usage.tokens, usage.requests
    return (
        usage.running,
        requests and (requests.level, requests.filled_at),
        tokens
        and (tokens.level, tokens.filled_at, tokens.at_risk, tokens.spent, [each.missing for each in tokens.taken]),
    )


def exact_levels(limit: int, uses: list[tuple[float, int]], now: float) -> float:
    """A full bucket from which each request takes what it used in the moment it is let in."""
    level, at = float(limit), 0.0
    for moment, used in uses:
        level, at = min(limit, level + limit / MINUTE_S * (moment - at)) - used, moment
    return min(limit, level + limit / MINUTE_S * (now - at))


class TokenBucketMachine(RuleBasedStateMachine):
    """Requests come, are let in if the bucket says so, use what they like, and end in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.bucket = TokenBucket(LIMIT, float(LIMIT), 0.0)
        self.now = 0.0
        # When it was let in, what it may use, and what it has used; None while it runs.
        self.let_in: list[tuple[float, Reservation, int | None]] = []

    @rule(seconds=st.one_of(st.floats(0, 3), st.floats(0, 90)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(prompt=st.integers(0, 300), most=st.integers(1, 500), expected=st.floats(0, 1))
    def ask(self, prompt: int, most: int, expected: float) -> None:
        most += prompt
        tokens = prompt + int(expected * (most - prompt))
        if most > self.bucket.most_at_once:
            assert most > LIMIT * (1 + DEBT)
            return
        level = self.bucket.level_for(tokens, most)
        if self.bucket.seconds_until(level, self.now) == 0.0 and level <= LIMIT:
            self.let_in.append((self.now, self.bucket.reserve(tokens, most, self.now), None))

    @precondition(lambda self: any(used is None for *_, used in self.let_in))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        running = [index for index, (*_, used) in enumerate(self.let_in) if used is None]
        index = data.draw(st.sampled_from(running))
        moment, reservation, _ = self.let_in[index]
        used = data.draw(st.one_of(st.just(reservation.most), st.integers(0, reservation.most)))
        reservation.settle(used, self.now)
        self.let_in[index] = moment, reservation, used

    def _worst(self) -> list[tuple[float, int]]:
        """As if all that runs used what it may."""
        return [(moment, each.most if used is None else used) for moment, each, used in self.let_in]

    @invariant()
    def no_window_has_more_than_limit_and_debt(self) -> None:
        uses = self._worst()
        for first, (start, _) in enumerate(uses):
            total = 0
            for end, used in uses[first:]:
                total += used
                assert total <= LIMIT * (1 + DEBT) + RATE * (end - start) + 1e-6

    @invariant()
    def never_fuller_than_the_exact_bucket(self) -> None:
        """What is under way counts as expected; what it uses beyond is the risk."""
        uses = [(moment, min(each.tokens, used or 0)) for moment, each, used in self.let_in]
        assert self.bucket.level_at(self.now) <= exact_levels(LIMIT, uses, self.now) + 1e-6

    @invariant()
    def the_books_balance(self) -> None:
        running = [each for _, each, used in self.let_in if used is None]
        assert self.bucket.at_risk == sum(each.most - each.tokens for each in running)
        assert set(self.bucket.taken) <= set(running)
        # All that is not there is somebody's.
        missing = self.bucket.spent + sum(each.missing for each in self.bucket.taken)
        assert self.bucket.level + missing == pytest.approx(LIMIT)

    def teardown(self) -> None:
        for _, reservation, used in self.let_in:
            if used is None:
                reservation.settle(reservation.most, self.now)
        # Below empty by no more than the debt: full again after so long.
        later = self.now + MINUTE_S * (1 + DEBT)
        assert self.bucket.level_at(later) == pytest.approx(LIMIT)
        assert self.bucket.at_risk == 0
        assert not self.bucket.taken


TestTokenBucket = TokenBucketMachine.TestCase


@given(
    st.lists(
        st.tuples(st.floats(0, 20), st.integers(0, 200), st.integers(0, 200), st.floats(0, 20)), min_size=1, max_size=12
    )
)
def test_one_request_after_the_other_is_counted_exactly(requests: list[tuple[float, int, int, float]]) -> None:
    """Nothing of what is not used is lost, unless the bucket was full without it."""
    bucket, now = TokenBucket(LIMIT, float(LIMIT), 0.0), 0.0
    uses: list[tuple[float, int]] = []
    for wait, used, spare, seconds in requests:
        now += wait
        most = used + spare
        if bucket.seconds_until(bucket.level_for(most, most), now) == 0.0:
            reservation = bucket.reserve(most, most, now)
            uses.append((now, used))
            now += seconds
            reservation.settle(used, now)
        assert bucket.level_at(now) == pytest.approx(exact_levels(LIMIT, uses, now))


@given(
    st.lists(
        st.tuples(st.floats(0, 2), st.integers(0, 60), st.integers(0, 60), st.integers(0, 60), st.floats(0, 1)),
        min_size=1,
        max_size=12,
    )
)
def test_of_several_that_end_before_the_bucket_is_full_again_nothing_is_lost(
    requests: list[tuple[float, int, int, int, float]],
) -> None:
    """Though they use more and less than expected, and end in any order."""
    bucket, now = TokenBucket(LIMIT, float(LIMIT), 0.0), 0.0
    bucket.reserve(300, 300, 0.0).settle(300, 0.0)
    uses: list[tuple[float, int]] = [(0.0, 300)]
    ends: list[tuple[float, int, Reservation]] = []

    def end(until: float) -> None:
        while ends and min(moment for moment, *_ in ends) <= until:
            ends.sort(key=lambda each: each[0])
            moment, used, reservation = ends.pop(0)
            reservation.settle(used, moment)

    for wait, expected, most, used, part in requests:
        now += wait
        end(now)
        # Counts what time has brought back.
        bucket.reserve(0, 0, now).settle(0, now)
        most = max(expected, most, used)
        uses.append((now, used))
        # By then time has brought back what was used before it.
        ends.append((now + part * bucket.spent / RATE, used, bucket.reserve(expected, most, now)))
    now = max([now, *(moment for moment, *_ in ends)])
    end(now)
    assert bucket.level_at(now) == pytest.approx(exact_levels(LIMIT, uses, now))


def test_who_used_more_than_expected_costs_nobody_else_what_he_gets_back() -> None:
    bucket = TokenBucket(LIMIT, float(LIMIT), 0.0)
    first = bucket.reserve(100, 250, 0.0)
    second = bucket.reserve(300, 300, 10.0)
    # Time has brought back the hundred, and what is used beyond comes back before anything of the second.
    first.settle(250, 10.0)
    second.settle(0, 25.0)
    assert bucket.level_at(25.0) == LIMIT


def test_who_is_longer_under_way_costs_nobody_else_what_he_gets_back() -> None:
    bucket = TokenBucket(LIMIT, float(LIMIT), 0.0)
    first = bucket.reserve(100, 100, 0.0)
    bucket.reserve(100, 100, 0.0).settle(100, 0.0)
    first.settle(0, 10.0)
    assert bucket.level_at(10.0) == LIMIT


def test_fifty_at_once_against_a_limit_of_a_hundred() -> None:
    usage, refusals = usage_of(tokens_per_minute=100), []
    for _ in range(50):
        try:
            usage.check(Demand(5, 10, 1), "rag", 0.0)
        except errors.TenantQuotaError as error:
            refusals.append(error)
        else:
            usage.accept(Demand(5, 10, 1), "rag", 0.0)
    assert len(refusals) == 50 - 100 // 15
    assert all(each.metadata["quota"] == "tokens_per_minute" and each.retry_after_s for each in refusals)


def test_known_outputs_let_more_in_but_never_more_than_the_debt() -> None:
    usage = usage_of(tokens_per_minute=100)
    for _ in range(OUTPUTS_KNOWN):
        usage.note_output("rag", 1)
    demand, worst = Demand(1, 9, 1), 0
    # Each is expected to use 2 and may use 10.
    while worst < 1000:
        try:
            usage.check(demand, "rag", 0.0)
        except errors.TenantQuotaError:
            break
        usage.accept(demand, "rag", 0.0)
        worst += demand.most
    assert worst == 120


def test_time_and_what_was_not_used_bring_tokens_back() -> None:
    usage = usage_of(tokens_per_minute=600)
    demand = Demand(100, 500, 1)
    usage.check(demand, "rag", 0.0)
    reservation = usage.accept(demand, "rag", 0.0)
    # At the worst case of both, 450 have to be there.
    assert refusal_of(usage, demand).retry_after_s == pytest.approx(60.0)
    assert refusal_of(usage, Demand(1, 1, 1), 0.1).retry_after_s == pytest.approx(0.1)
    usage.ended(reservation, 130, 2.0, 2.0)
    assert usage.tokens is not None
    assert usage.tokens.level_at(2.0) == pytest.approx(600 - 130 + 20)
    usage.check(Demand(100, 390, 1), "rag", 2.0)
    assert refusal_of(usage, Demand(100, 391, 1), 2.0).retry_after_s == pytest.approx(0.1)


def test_who_lacks_tokens_comes_behind_the_one_before() -> None:
    usage = usage_of(tokens_per_minute=600)
    usage.accept(Demand(100, 500, 1), "rag", 0.0)
    demand = Demand(10, 50, 1)
    waits = [refusal_of(usage, demand).retry_after_s for _ in range(6)]
    # Sixty tokens are there every six seconds; nobody waits for more than thirty seconds for others' sake.
    assert waits == pytest.approx([6.0, 12.0, 18.0, 24.0, 30.0, 6.0])
    # Each that comes as told is let in.
    for at in (6.0, 12.0, 18.0, 24.0, 30.0):
        usage.check(demand, "rag", at)
        usage.accept(demand, "rag", at)
        assert refusal_of(usage, demand, at).retry_after_s


def test_nobody_is_told_to_wait_for_longer_than_clients_do() -> None:
    usage = usage_of(tokens_per_minute=600)
    usage.accept(Demand(100, 650, 1), "rag", 0.0)
    assert usage.tokens is not None
    # More was used than was taken: the bucket is below empty.
    usage.tokens.take(150.0, 0.0)
    assert [refusal_of(usage, Demand(100, 500, 1)).retry_after_s for _ in range(3)] == [LONGEST_RETRY_SECONDS] * 3


def test_what_can_never_be_is_told_so() -> None:
    usage = usage_of(tokens_per_minute=100)
    usage.check(Demand(25, 50, 2), "rag", 0.0)
    error = refusal_of(usage, Demand(25, 101, 1))
    assert error.retry_after_s is None
    assert error.metadata["tokens_at_most"] == "125"
    # Though it would also have to wait for something.
    usage = usage_of(tokens_per_minute=100, requests_per_minute=1, max_concurrent=1)
    usage.accept(Demand(1, 1, 1), "rag", 0.0)
    assert refusal_of(usage, Demand(25, 101, 1)).retry_after_s is None
    assert refusal_of(usage, Demand(25, 100, 1)).metadata["quota"] == "requests_per_minute"


def test_whoever_waits_for_others_to_end_is_told_when_they_may() -> None:
    usage = usage_of(tokens_per_minute=100)
    for _ in range(OUTPUTS_KNOWN):
        usage.note_output("rag", 0)
    usage.accept(Demand(1, 124, 1), "rag", 0.0)
    # Full again, and yet too much is at risk, for ten minutes already.
    assert refusal_of(usage, Demand(1, 99, 1), 600.0).retry_after_s == LONGEST_RETRY_SECONDS
    usage.accept(Demand(0, 0, 1), "rag", 600.0)
    usage.ended(None, 0, 16.0, 600.0)
    assert refusal_of(usage, Demand(1, 99, 1), 600.0).retry_after_s == 16.0
    assert refusal_of(usage, Demand(1, 99, 1), 640.0).retry_after_s == 40.0


def test_requests_by_the_minute() -> None:
    usage = usage_of(requests_per_minute=2)
    for _ in range(2):
        usage.check(Demand(1, 1, 1), "rag", 0.0)
        usage.ended(usage.accept(Demand(1, 1, 1), "rag", 0.0), 2, 1.0, 0.0)
    error = refusal_of(usage, Demand(1, 1, 1), 10.0)
    assert error.retry_after_s == pytest.approx(20.0)
    assert error.metadata == {"quota": "requests_per_minute", "limit": "2", "tenant": "a"}
    usage.check(Demand(1, 1, 1), "rag", 30.0)


def test_requests_at_a_time() -> None:
    usage = usage_of(max_concurrent=2)
    for _ in range(2):
        usage.check(Demand(1, 1, 1), "rag", 0.0)
        usage.accept(Demand(1, 1, 1), "rag", 0.0)
    error = refusal_of(usage, Demand(1, 1, 1))
    assert error.metadata["quota"] == "max_concurrent"
    assert error.retry_after_s == UNKNOWN_RETRY_SECONDS
    usage.ended(None, 2, 6.0, 6.0)
    usage.accept(Demand(1, 1, 1), "rag", 6.0)
    # Two run, and each takes six seconds.
    assert refusal_of(usage, Demand(1, 1, 1), 6.0).retry_after_s == 3.0


def test_a_limit_that_was_lowered_waits_for_several_to_end() -> None:
    usage = usage_of(max_concurrent=4)
    for _ in range(4):
        usage.accept(Demand(1, 1, 1), "rag", 0.0)
    usage.adopt(NamedPlan("a", max_concurrent=1), 0.0)
    assert refusal_of(usage, Demand(1, 1, 1), 0.0).retry_after_s == 4 * UNKNOWN_RETRY_SECONDS
    usage.ended(None, 2, 6.0, 6.0)
    # Three run for six seconds each: one ends every two.
    assert refusal_of(usage, Demand(1, 1, 1), 6.0).retry_after_s == 6.0
    usage.ended(None, 2, 6.0, 6.0)
    usage.ended(None, 2, 6.0, 6.0)
    assert refusal_of(usage, Demand(1, 1, 1), 6.0).retry_after_s == 6.0


def test_requests_that_run_on_are_not_expected_to_end_in_a_second() -> None:
    usage = usage_of(max_concurrent=1)
    usage.accept(Demand(1, 1, 1), "rag", 100.0)
    waits = [refusal_of(usage, Demand(1, 1, 1), 100.0 + after).retry_after_s for after in (0.0, 0.5, 30.0, 1000.0)]
    assert waits == [UNKNOWN_RETRY_SECONDS, UNKNOWN_RETRY_SECONDS, 30.0, LONGEST_RETRY_SECONDS]
    # What began when nothing ran is not as old as what ended before.
    usage.ended(None, 2, 0.5, 1000.0)
    usage.accept(Demand(1, 1, 1), "rag", 2000.0)
    assert refusal_of(usage, Demand(1, 1, 1), 2000.0).retry_after_s == 0.5


def test_nobody_is_told_to_come_again_at_once() -> None:
    usage = usage_of(max_concurrent=1)
    usage.accept(Demand(1, 1, 1), "rag", 0.0)
    usage.ended(None, 2, 0.003, 0.003)
    usage.accept(Demand(1, 1, 1), "rag", 0.003)
    assert refusal_of(usage, Demand(1, 1, 1), 0.003).retry_after_s == SHORTEST_RETRY_SECONDS


def test_several_limits_are_all_kept() -> None:
    usage = usage_of(requests_per_minute=60, tokens_per_minute=6000, max_concurrent=1)
    usage.accept(Demand(10, 10, 1), "rag", 0.0)
    assert refusal_of(usage, Demand(10, 10, 1)).metadata["quota"] == "max_concurrent"
    usage.plan = NamedPlan("a")
    usage.check(Demand(10, 10, 1), "rag", 0.0)


def test_a_limit_that_changes_leaves_its_bucket_as_full_as_it_was() -> None:
    usage = usage_of(tokens_per_minute=100, requests_per_minute=2)
    reservation = usage.accept(Demand(25, 25, 1), "rag", 0.0)
    usage.adopt(NamedPlan("a", tokens_per_minute=200, requests_per_minute=4), 0.0)
    assert usage.tokens is not None
    assert usage.requests is not None
    assert (usage.tokens.level_at(0.0), usage.requests.level_at(0.0)) == (100.0, 2.0)
    # What is under way settles with it: ten of fifty tokens were used.
    usage.ended(reservation, 10, 1.0, 0.0)
    assert usage.tokens.level_at(0.0) == 140.0
    assert usage.tokens.at_risk == 0
    # To and fro fills nothing, and neither does the same limit named again.
    for limit in (3, 100, 100, 200):
        usage.adopt(NamedPlan("a", tokens_per_minute=limit, requests_per_minute=limit), 0.0)
    assert usage.tokens.level_at(0.0) == pytest.approx(140.0)
    assert usage.requests.level_at(0.0) == pytest.approx(100.0)
    usage.adopt(NamedPlan("a"), 2.0)
    assert usage.tokens is None
    assert usage.accept(Demand(50, 50, 1), "rag", 2.0) is None


def test_a_smaller_bucket_is_never_given_more_than_is_missing() -> None:
    bucket = TokenBucket(1000, 1000.0, 0.0)
    first = bucket.reserve(400, 400, 0.0)
    second = bucket.reserve(400, 400, 0.0)
    bucket.resize(10, 0.0)
    assert bucket.level == 2.0
    first.settle(0, 0.0)
    assert bucket.level == 6.0
    second.settle(0, 30.0)
    assert bucket.level == 10.0


def test_a_bucket_is_never_more_than_full() -> None:
    bucket = Bucket(60, 60.0, 0.0)
    assert bucket.level_at(1000.0) == 60.0
    bucket.take(30.0, 1000.0)
    assert bucket.level_at(1010.0) == 40.0
    assert bucket.seconds_until(50.0, 1010.0) == pytest.approx(10.0)
    assert bucket.seconds_until(500.0, 1010.0) == pytest.approx(20.0)
