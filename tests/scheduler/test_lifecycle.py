"""The lifecycle table, every pair of states."""

from __future__ import annotations

from itertools import product

import pytest
from sequences import sequence_of

from scheduler.lifecycle import TRANSITIONS, IllegalTransitionError, State
from scheduler.sequence import Request
from scheduler.simulator.small import submission

LEGAL = {
    ("QUEUED", "PREFILL"),
    ("QUEUED", "DECODE"),
    ("QUEUED", "PAUSED"),
    ("QUEUED", "PREEMPTED"),
    ("QUEUED", "CANCELLING"),
    ("PREFILL", "DECODE"),
    ("PREFILL", "PREEMPTED"),
    ("PREFILL", "QUEUED"),
    ("PREFILL", "CANCELLING"),
    ("PREFILL", "FINISHED"),
    ("DECODE", "FINISHED"),
    ("DECODE", "PAUSED"),
    ("DECODE", "PREEMPTED"),
    ("DECODE", "QUEUED"),
    ("DECODE", "CANCELLING"),
    ("PAUSED", "QUEUED"),
    ("PAUSED", "PREEMPTED"),
    ("PAUSED", "CANCELLING"),
    ("PAUSED", "FINISHED"),
    ("PREEMPTED", "QUEUED"),
    ("PREEMPTED", "CANCELLING"),
    ("PREEMPTED", "FINISHED"),
    ("CANCELLING", "FINISHED"),
}


@pytest.mark.parametrize(("old", "new"), list(product(State, State)))
def test_every_pair_of_states(old: State, new: State) -> None:
    sequence = sequence_of(Request(1, submission(1, (1, 2, 3), 8), 5.0, None), 1, [1, 2, 3], 11, state=old)
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
