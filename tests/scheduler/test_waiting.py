"""The queue keeps arrival order whatever comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sequences import sequence_of
from virtual_mesh import submission

from scheduler.sequence import Request, Sequence
from scheduler.waiting import WaitingQueue


def make(arrival: int, length: int = 3) -> Sequence:
    request = Request(1, submission(arrival, [1] * length), 0.0, None)
    return sequence_of(request, arrival, [1] * length, length + 8)


@given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
def test_order_is_by_arrival(order: list[int], leaving: set[int]) -> None:
    queue = WaitingQueue()
    sequences = {arrival: make(arrival, arrival + 1) for arrival in order}
    present: list[int] = []
    for arrival in order:
        ahead = queue.add(sequences[arrival])
        present = sorted([*present, arrival])
        assert ahead == present.index(arrival)
    for arrival in leaving:
        queue.remove(sequences[arrival])
    left = [arrival for arrival in range(12) if arrival not in leaving]
    assert [sequence.arrival for sequence in queue] == left
    assert [sequence.arrival for sequence in queue.head(3)] == left[:3]
    assert len(queue) == len(left)
    assert queue.num_tokens == sum(arrival + 1 for arrival in left)
