"""The queue keeps the order of urgency whatever comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sequences import sequence_of

from scheduler.sequence import Request, Sequence
from scheduler.simulator.small import submission
from scheduler.traffic_class import CLASSES
from scheduler.waiting import WaitingQueue


def make(arrival: int, length: int = 3, **changes: object) -> Sequence:
    request = Request(1, submission(arrival, [1] * length), 0.0, None)
    return sequence_of(request, arrival, [1] * length, length + 8, **changes)


@given(st.permutations(range(12)), st.lists(st.integers(0, 3), min_size=12, max_size=12), st.sets(st.integers(0, 11)))
def test_order_is_by_urgency_then_arrival(order: list[int], moments: list[int], leaving: set[int]) -> None:
    queue = WaitingQueue()
    sequences = {key: make(key, key + 1, urgency=(float(moments[key]), key)) for key in order}
    present: list[tuple[int, int]] = []
    for key in order:
        assert sequences[key] not in queue
        ahead = queue.add(sequences[key])
        present = sorted([*present, (moments[key], key)])
        assert ahead == present.index((moments[key], key))
        assert sequences[key] in queue
    for key in leaving:
        queue.remove(sequences[key])
        assert sequences[key] not in queue
    left = [key for _, key in present if key not in leaving]
    assert [sequence.arrival for sequence in queue] == left
    assert [sequence.arrival for sequence in queue.head(3)] == left[:3]
    assert len(queue) == len(left)
    assert queue.num_sequences == len(left)
    assert queue.num_tokens == sum(key + 1 for key in left)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.data())
def test_a_request_counts_once_however_many_of_its_outputs_wait(outputs: list[int], data: st.DataObject) -> None:
    queue = WaitingQueue()
    requests = [Request(1, submission(key, n=n), 0.0, None) for key, n in enumerate(outputs)]
    waiting = [
        sequence_of(request, 10 * key + index, [1], 9, urgency=(0.0, 10 * key + index))
        for key, request in enumerate(requests)
        for index in range(request.submission.n)
    ]
    for sequence in waiting:
        queue.add(sequence)
    for sequence in data.draw(st.permutations(waiting)):
        assert queue.num_requests == len({each.request for each in queue})
        queue.remove(sequence)
    assert queue.num_requests == 0


def test_a_class_that_can_wait_lets_others_ahead_only_for_so_long() -> None:
    batch, interactive = CLASSES["batch"], CLASSES["interactive"]
    queue = WaitingQueue()
    queue.add(make(1, urgency=batch.urgency(0, 0.0, 1)))
    for arrival, moment in ((2, 59.0), (3, 61.0)):
        queue.add(make(arrival, urgency=interactive.urgency(0, moment, arrival)))
    assert [sequence.arrival for sequence in queue] == [2, 1, 3]
    # A level of priority is worth ten seconds.
    queue.add(make(4, urgency=interactive.urgency(-1, 69.5, 4)))
    assert [sequence.arrival for sequence in queue] == [2, 4, 1, 3]


def test_another_sequence_of_the_same_urgency_is_not_taken_for_it() -> None:
    queue = WaitingQueue()
    queue.add(make(1))
    assert make(1) not in queue
