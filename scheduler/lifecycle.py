"""The life of a sequence: its states, and the one table of what may become of it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class State(Enum):
    """Where a sequence is in its life."""

    QUEUED = "QUEUED"  # waits for a worker
    PREFILL = "PREFILL"  # on a worker, its tokens not yet all in the KV cache
    DECODE = "DECODE"  # on a worker, has got a token there
    PAUSED = "PAUSED"  # its reader is behind: it is in no plan, wherever its KV cache is
    PREEMPTED = "PREEMPTED"  # told to give way; its worker has not yet said that the blocks are free
    CANCELLING = "CANCELLING"  # told to stop; its worker has not yet said that the blocks are free
    FINISHED = "FINISHED"


TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        # To DECODE where its KV cache was kept; to PREEMPTED when others need the blocks with that.
        State.QUEUED: frozenset({State.PREFILL, State.DECODE, State.PAUSED, State.PREEMPTED, State.CANCELLING}),
        # To QUEUED when the worker is lost, to FINISHED when the worker reports a fault.
        State.PREFILL: frozenset({State.DECODE, State.PREEMPTED, State.QUEUED, State.CANCELLING, State.FINISHED}),
        State.DECODE: frozenset({State.FINISHED, State.PAUSED, State.PREEMPTED, State.QUEUED, State.CANCELLING}),
        # To FINISHED when it ended by itself before the worker saw the pause.
        State.PAUSED: frozenset({State.QUEUED, State.PREEMPTED, State.CANCELLING, State.FINISHED}),
        # To FINISHED when it ended by itself before the worker saw the release.
        State.PREEMPTED: frozenset({State.QUEUED, State.CANCELLING, State.FINISHED}),
        State.CANCELLING: frozenset({State.FINISHED}),
        State.FINISHED: frozenset(),
    }
)

# States in which the sequence takes part in plans.
RUNNING = frozenset({State.PREFILL, State.DECODE})

# States in which its blocks are about to be free.
LEAVING = frozenset({State.PREEMPTED, State.CANCELLING})


class IllegalTransitionError(Exception):
    """A bug: the lifecycle has no such arrow."""

    def __init__(self, sequence_id: int, old: State, new: State) -> None:
        super().__init__(f"sequence {sequence_id} cannot go from {old.value} to {new.value}")
        self.old = old
        self.new = new
