"""Lines keep their order whatever comes back, the counts are right, and everybody is charged what he was served."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sequences import sequence_of

from scheduler.lifecycle import State
from scheduler.sequence import Request, Sequence
from scheduler.simulator.small import submission
from scheduler.tenant import NamedPlan
from scheduler.traffic_class import CLASSES, DEFAULT_CLASS
from scheduler.waiting import NOBODY, TENANTS_REMEMBERED, Line, WaitingQueue


def make(
    arrival: int, length: int = 3, *, tenant: str = "", traffic_class: str = "", weight: float = 1.0, **changes: Any
) -> Sequence:
    request = Request(
        1,
        submission(arrival, [1] * length),
        0.0,
        None,
        tenant=NamedPlan(tenant, weight=weight),
        traffic_class=CLASSES.get(traffic_class, DEFAULT_CLASS),
    )
    return sequence_of(request, arrival, [1] * length, length + 8, **changes)


def line_of(queue: WaitingQueue, tenant: str = "", traffic_class: str = "interactive") -> Line:
    return queue.classes[traffic_class].lines[tenant]


@given(
    st.permutations(range(12)),
    st.lists(st.integers(0, 3), min_size=12, max_size=12),
    st.sets(st.integers(0, 11)),
    st.sets(st.integers(0, 11)),
)
def test_in_a_line_those_that_come_back_are_first_then_it_is_by_urgency_and_arrival(
    order: list[int], moments: list[int], back: set[int], leaving: set[int]
) -> None:
    queue = WaitingQueue()
    sequences = {
        key: make(key, key + 1, claim=(float(moments[key]), key), placements=int(key in back)) for key in order
    }
    present: list[tuple[bool, int, int]] = []
    for key in order:
        assert sequences[key] not in queue
        ahead = queue.add(sequences[key])
        present = sorted([*present, (key not in back, moments[key], key)])
        assert ahead == present.index((key not in back, moments[key], key))
        assert sequences[key] in queue
    for key in leaving:
        queue.remove(sequences[key])
        assert sequences[key] not in queue
    left = [key for _, _, key in present if key not in leaving]
    assert [sequence.arrival for sequence in queue] == left
    assert len(queue) == queue.num_sequences == len(left)
    assert queue.num_tokens == sum(key + 1 for key in left)


@given(
    st.lists(st.tuples(st.sampled_from(["interactive", "rag"]), st.sampled_from("abc"), st.integers(1, 4)), max_size=8),
    st.data(),
)
def test_counts_are_of_requests_sequences_and_tokens_by_class(
    asked: list[tuple[str, str, int]], data: st.DataObject
) -> None:
    queue = WaitingQueue()
    waiting: list[Sequence] = []
    for key, (traffic_class, tenant, n) in enumerate(asked):
        request = Request(
            1,
            submission(key, n=n),
            0.0,
            None,
            tenant=NamedPlan(tenant),
            traffic_class=CLASSES[traffic_class],
        )
        # Outputs that had to give way come back one by one.
        waiting += [
            sequence_of(request, 10 * key + index, [1] * (1 + key), 9, claim=(0.0, 10 * key + index), placements=1)
            for index in range(n)
        ]
    for sequence in data.draw(st.permutations(waiting)):
        queue.add(sequence)
    for sequence in data.draw(st.permutations(waiting)):
        for name in ("interactive", "rag", "batch"):
            of_class = [each for each in waiting if each.request.traffic_class.name == name]
            requests, tokens = {each.request for each in of_class}, sum(len(each.token_ids) for each in of_class)
            assert queue.count(name) == (len(requests), len(of_class), tokens)
        assert queue.num_requests == len({each.request for each in waiting})
        queue.remove(sequence)
        waiting.remove(sequence)
    assert queue.count("interactive") == queue.count("rag") == NOBODY
    assert queue.num_requests == 0


def test_the_place_is_told_among_its_own_tenant_and_class() -> None:
    queue = WaitingQueue()
    assert [queue.add(make(key, tenant="a")) for key in (1, 2, 3)] == [0, 1, 2]
    assert queue.add(make(4, tenant="b")) == 0
    assert queue.add(make(5, tenant="a", traffic_class="rag")) == 0
    assert queue.add(make(6, tenant="a", placements=1)) == 0


def test_another_sequence_of_the_same_urgency_is_not_taken_for_it() -> None:
    queue = WaitingQueue()
    queue.add(make(1))
    assert make(1) not in queue
    assert make(1, tenant="b") not in queue
    assert make(1, traffic_class="rag") not in queue


def test_a_prompt_is_charged_once_and_only_what_is_computed_of_it() -> None:
    queue = WaitingQueue()
    sequence = make(1, 100, tenant="a", weight=2.0, cached_ahead=20)
    queue.add(sequence)
    queue.start(sequence)
    share, of_class = line_of(queue, "a").share, queue.classes["interactive"].share
    assert (share.served, of_class.served) == (40.0, 10.0)
    # The cache had less than was believed, or more.
    queue.note_prefill(sequence, 0, 0)
    assert (share.served, of_class.served) == (50.0, 12.5)
    queue.note_prefill(sequence, 60, 70)
    queue.note_prefill(sequence, 60, 100)
    assert (share.served, of_class.served) == (20.0, 5.0)
    # What it gets is charged when somebody looks, and never twice.
    sequence.token_ids += [7] * 6
    queue.charge_tokens(sequence)
    queue.charge_tokens(sequence)
    assert share.served == 23.0
    # What is computed again had been taken from it.
    sequence.placements = 1
    queue.add(sequence)
    queue.start(sequence)
    assert share.served == 23.0
    sequence.token_ids.append(7)
    queue.charge_tokens(sequence)
    assert share.served == 23.5


def test_the_outputs_of_a_group_are_charged_each_and_its_prompt_once() -> None:
    queue = WaitingQueue()
    leader, fork = make(1, 10), make(2, 10)
    leader.forks, fork.leader = (fork,), leader
    queue.add(leader)
    queue.start(leader)
    assert line_of(queue).share.served == 10.0
    for each in (leader, fork):
        each.token_ids.append(7)
        queue.charge_tokens(each)
    assert line_of(queue).share.served == 12.0


def test_who_is_ahead_of_the_turn_of_his_class_is_not_charged_to_it() -> None:
    queue = WaitingQueue()
    sequence = make(1, 10, hurried=True)
    queue.add(sequence)
    queue.start(sequence)
    assert line_of(queue).share.served == 10.0
    assert queue.classes["interactive"].share.served == 0.0


def test_who_comes_back_begins_with_the_least_of_those_that_wait() -> None:
    queue = WaitingQueue()
    for tenant, length in (("a", 30), ("b", 50)):
        first = make(length, length, tenant=tenant)
        queue.add(first)
        queue.add(make(length + 1, tenant=tenant))
        queue.start(first)
        queue.note_prefill(first, 0, 20)
    # Somebody new is owed nothing of what others got before: what is still to be computed of that is to come.
    queue.add(make(3, tenant="c"))
    assert line_of(queue, "c").share.served == 20.0
    # Who has had more keeps that.
    served = make(4, 500, tenant="d")
    queue.add(served)
    queue.start(served)
    queue.settle(served)
    assert line_of(queue, "d").share.served == 520.0
    queue.add(make(5, tenant="d"))
    assert line_of(queue, "d").share.served == 520.0


def test_where_nobody_waits_one_begins_where_the_last_one_left() -> None:
    queue = WaitingQueue()
    last = make(1, 70, tenant="a")
    queue.add(last)
    queue.start(last)
    queue.note_prefill(last, 0, 40)
    queue.add(make(2, tenant="b"))
    assert line_of(queue, "b").share.served == 40.0
    # Classes as well, by their weights.
    queue.add(make(3, traffic_class="batch"))
    assert queue.classes["batch"].share.served == 70.0 / 8


def test_who_asked_for_less_is_owed_some_of_it_whoever_else_is() -> None:
    queue = WaitingQueue()
    queue.set_owed(100.0)
    flood = make(1, 1000, tenant="flood")
    queue.add(flood)
    queue.add(make(2, tenant="flood"))
    queue.start(flood)
    queue.note_prefill(flood, 0, 1000)
    queue.add(make(3, tenant="a"))
    queue.add(make(4, tenant="b", weight=4.0))
    # Tokens, whatever the scale of the weights; and not more because others that wait are owed some, too.
    assert (line_of(queue, "a").share.served, line_of(queue, "b").share.served) == (900.0, 975.0)
    # Nor the same again.
    back = make(5, 60, tenant="c")
    queue.add(back)
    queue.start(back)
    queue.settle(back)
    queue.add(make(6, tenant="c"))
    assert line_of(queue, "c").share.served == 960.0
    # The others of its class are where they were; classes are owed nothing.
    assert line_of(queue, "flood").share.served == 1000.0
    queue.add(make(7, traffic_class="batch"))
    assert queue.classes["batch"].share.served == queue.classes["interactive"].share.received


def test_what_is_ahead_of_a_prompt_goes_with_its_prefill() -> None:
    queue = WaitingQueue()
    sequence = make(1, 100, weight=2.0, cached_ahead=10)
    queue.add(sequence)
    queue.start(sequence)
    share = line_of(queue).share
    for cached, computed, ahead in ((10, 30, 70), (0, 40, 60), (50, 50, 50)):
        queue.note_prefill(sequence, cached, computed)
        assert (share.ahead, share.received) == (ahead, share.served - ahead / 2)
    # It has to begin anew, and is not charged again.
    queue.settle(sequence)
    assert share.ahead == 0
    sequence.placements = 1
    queue.add(sequence)
    queue.start(sequence)
    assert share.ahead == 0


def test_what_is_cancelled_before_it_is_computed_is_given_back() -> None:
    queue = WaitingQueue()
    sequence = make(1, 100)
    queue.add(sequence)
    queue.start(sequence)
    queue.note_prefill(sequence, 0, 30)
    sequence.state = State.CANCELLING
    queue.settle(sequence)
    share = line_of(queue).share
    assert (share.served, share.ahead) == (30.0, 0)
    assert queue.classes["interactive"].share.served == 30.0 / 8


def test_tenants_are_forgotten_once_it_makes_no_difference() -> None:
    queue = WaitingQueue()
    heavy = make(0, 90, tenant="heavy")
    waiting = make(1, tenant="waits")
    queue.add(heavy)
    queue.add(waiting)
    queue.start(heavy)
    for key in range(2, 1000):
        passing = make(key, 1, tenant=f"tenant-{key}")
        queue.add(passing)
        queue.remove(passing)
    of_class = queue.classes["interactive"]
    lines = of_class.lines
    assert {"waits", "heavy"} <= lines.keys()
    assert len(lines) <= TENANTS_REMEMBERED + 8
    assert of_class.waiting.keys() | of_class.empty.keys() == lines.keys()
    assert of_class.waiting.keys() == {"waits"}
    # A late charge finds a line.
    heavy.token_ids.append(7)
    queue.charge_tokens(heavy)
    assert line_of(queue, "heavy").share.served == 91.0


def test_the_weight_is_that_of_the_newest_plan() -> None:
    queue = WaitingQueue()
    queue.add(make(1, weight=1.0))
    queue.add(make(2, weight=3.0))
    queue.add(make(3, weight=1.0, placements=1))
    assert line_of(queue).share.weight == 3.0


def test_what_is_given_back_is_what_was_charged_whatever_the_weight_is_now() -> None:
    queue = WaitingQueue()
    sequence = make(1, 1000, weight=100.0)
    queue.add(sequence)
    queue.start(sequence)
    share = line_of(queue).share
    assert (share.served, share.received) == (10.0, 0.0)
    # The plan changes with the next request.
    queue.add(make(2, 10, weight=0.1))
    assert (share.weight, share.served, share.received) == (0.1, 10.0, 0.0)
    queue.note_prefill(sequence, 100, 100)
    assert (share.served, share.received) == (pytest.approx(9.0), pytest.approx(0.0))
    sequence.state = State.CANCELLING
    queue.settle(sequence)
    assert share.served == pytest.approx(0.0)
    assert share.received == share.served
