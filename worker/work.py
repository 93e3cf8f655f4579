"""Steps that a device was given to compute: the host's side of them, whatever kind. Knows no plans and no commands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from collections.abc import Sequence as Seq

import structlog

from .kv_cache import KVCache
from .outcome import Outcome
from .sequence import Sequence
from .sequences import Sequences
from .steps import Computed, DeviceLost, Row, Steps

log = structlog.get_logger()


class Work(ABC):
    """From `begin` to `close`. Blocks are reserved for all it may compute; what was not needed is given back at its
    end. If a step fails, all its sequences do."""

    def __init__(self, steps: Steps, kv_cache: KVCache, sequences: Sequences, rows: Seq[Row]) -> None:
        self._steps = steps
        self._kv_cache = kv_cache
        self._sequences = sequences
        self.rows = rows
        self.num_taken = 0  # steps
        self._failed: Exception | None = None  # to begin
        self._has_ended = False

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether nothing more is wanted of it."""

    @abstractmethod
    def after(self, num_steps: int) -> list[Row] | None:
        """Where its sequences stand after so many further steps: with the row to compute then, or with a count of 0 if
        their prompts go on. Without those that will have ended for sure. None if that cannot be said, or if the device
        would not know who ends."""

    @abstractmethod
    def _begin(self) -> bool: ...

    @abstractmethod
    def _take(self, computed: Computed) -> Outcome: ...

    @property
    def can_be_followed(self) -> bool:
        """Whether the device computes it."""
        return self._failed is None

    @property
    def live(self) -> list[Sequence]:
        """Its sequences that have not ended."""
        return [row.sequence for row in self.rows if self._sequences.runs(row.sequence)]

    def begin(self) -> bool:
        """Lets the device begin; False if it does not do so before all else is over. A failure shows with the first
        step."""
        try:
            return self._begin()
        except DeviceLost:
            raise
        except Exception as error:
            self._failed = error
            return True

    def next(self) -> Outcome | None:
        """Waits for the next step; None if there is none any more."""
        # What the device has next is another's.
        if self._has_ended:
            return None
        try:
            if self._failed is not None:
                raise self._failed
            computed = self._steps.next()
        except DeviceLost:
            raise
        except Exception as error:  # a fault of the device or a bug: the batch fails, the worker lives
            live = self.live
            log.exception("step_failed", sequences=len(live))
            self._has_ended = True
            problem = f"the step failed: {type(error).__name__}"
            return Outcome(ended=[ended for each in live for ended in self._sequences.fail(each, problem)])
        if computed is None:
            self._has_ended = True
            return None
        self.num_taken += 1
        return self._take(computed)

    def close(self, kept: Collection[Sequence] = ()) -> None:
        """Gives back what was reserved in vain, but of those in `kept`: other works have them. After the last step."""
        for sequence in self.live:
            if sequence not in kept:
                sequence.table.trim(sequence.num_computed)
