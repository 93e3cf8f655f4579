"""The lifecycle table, every pair of states."""

from __future__ import annotations

from itertools import product

import pytest
from sequences import sequence_of
from virtual_mesh import submission

from scheduler.sequence import TRANSITIONS, IllegalTransitionError, Request, Sequence, State

LEGAL = {
    ("QUEUED", "PREFILL"),
    ("QUEUED", "DECODE"),
    ("QUEUED", "CANCELLING"),
    ("PREFILL", "DECODE"),
    ("PREFILL", "PREEMPTED"),
    ("PREFILL", "QUEUED"),
    ("PREFILL", "CANCELLING"),
    ("PREFILL", "FINISHED"),
    ("DECODE", "FINISHED"),
    ("DECODE", "PREEMPTED"),
    ("DECODE", "QUEUED"),
    ("DECODE", "CANCELLING"),
    ("PREEMPTED", "QUEUED"),
    ("PREEMPTED", "CANCELLING"),
    ("PREEMPTED", "FINISHED"),
    ("CANCELLING", "FINISHED"),
}


def make(state: State = State.QUEUED) -> Sequence:
    request = Request(1, submission(1, (1, 2, 3), 8), 5.0, None)
    return sequence_of(request, 1, [1, 2, 3], 11, state=state)


@pytest.mark.parametrize(("old", "new"), list(product(State, State)))
def test_every_pair_of_states(old: State, new: State) -> None:
    sequence = make(old)
    if (old.value, new.value) in LEGAL:
        sequence.become(new)
        assert sequence.state is new
        return
    with pytest.raises(IllegalTransitionError, match=f"{old.value} to {new.value}"):
        sequence.become(new)
    assert sequence.state is old


def test_the_table_covers_every_state_and_all_ends_are_reachable() -> None:
    assert TRANSITIONS.keys() == set(State)
    for state in State:
        reached, pending = {state}, [state]
        while pending:
            for new in TRANSITIONS[pending.pop()] - reached:
                reached.add(new)
                pending.append(new)
        assert State.FINISHED in reached


def test_a_sequence_that_comes_back_keeps_its_tokens_and_its_queue_time() -> None:
    sequence = make()
    sequence.place(link=3, now=7.0)
    sequence.token_ids.append(9)
    sequence.become(State.DECODE)
    sequence.computed = 3
    sequence.become(State.PREEMPTED)
    sequence.requeue()
    assert (sequence.link, sequence.computed, sequence.token_ids) == (None, 0, [1, 2, 3, 9])
    sequence.place(link=4, now=20.0)
    assert sequence.prefill_length == 4
    assert sequence.placements == 2
    assert sequence.queue_seconds == 2.0
    assert sequence.generated == 1
