"""Cancels of a request: why, where they found it, and how long they took."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass


class CancelOrigin(enum.Enum):
    """Who or what ended a request before its end. Values are the words in logs and in the ledger."""

    CLIENT = "client"
    DEADLINE = "deadline"
    STOP_STRING = "stop_string"
    OPERATOR = "operator"
    REVOKED = "revoked"  # its key
    SLOW_CONSUMER = "slow_consumer"
    SHUTDOWN = "shutdown"
    SCHEDULER_LOST = "scheduler_lost"
    ORPHAN = "orphan"  # one side had it and the other had not
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class CancelTrail:
    """What the scheduler says of a cancel that has taken effect. Seconds on its clock, from the moment at which the
    cancel came there: until the worker was told, None if none had to be, and until the last block was free."""

    origin: CancelOrigin
    # Where the sequences were, by output index.
    states: tuple[str, ...]
    release_s: float | None
    freed_s: float
    # Time of steps that were spent on it after that.
    late_gpu_s: float


@dataclass(slots=True, eq=False)
class Cancel:
    """One cancel, of an output or, if that is None, of the whole request. Times are seconds on the gateway's clock."""

    origin: CancelOrigin
    output_index: int | None
    seen_at: float
    # When the gateway heard that nothing of it is left; None: not yet, or it had not asked.
    done_at: float | None = None
    blocks_freed: int | None = None
    trail: CancelTrail | None = None


class Cancels:
    """Those of one request; of the whole request, and of each output, the first one counts. `clock` gives seconds."""

    __slots__ = ("_by_output", "_clock")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_output: dict[int | None, Cancel] = {}

    def __iter__(self) -> Iterator[Cancel]:
        return iter(self._by_output.values())

    def ask(self, origin: CancelOrigin, output_index: int | None = None) -> None:
        """There is a reason to cancel."""
        if output_index not in self._by_output:
            self._by_output[output_index] = Cancel(origin, output_index, self._clock())

    def answer(self, trail: CancelTrail | None, blocks_freed: int | None, output_index: int | None = None) -> None:
        """One that was asked for has taken effect. Without a trail there was nothing to cancel any more."""
        cancel = self._by_output.get(output_index)
        if cancel is not None and cancel.done_at is None:
            cancel.done_at, cancel.trail, cancel.blocks_freed = self._clock(), trail, blocks_freed

    def note(self, trail: CancelTrail, blocks_freed: int) -> None:
        """The scheduler has cancelled one output after another of itself; the trail of the last one is the longest."""
        cancel = self._by_output.get(None)
        if cancel is None:
            cancel = self._by_output[None] = Cancel(trail.origin, None, self._clock() - trail.freed_s)
        if cancel.done_at is None:
            cancel.trail, cancel.blocks_freed = trail, (cancel.blocks_freed or 0) + blocks_freed
