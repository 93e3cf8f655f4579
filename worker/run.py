"""Decode steps over the same sequences that a device computes without asking: the host's side of it.

Knows no plans and no commands.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import structlog

from . import _core
from .kv_cache import KVCache
from .messages import Ended, EndReason
from .ops.commit import NO_TOKEN
from .outcome import Outcome
from .sequence import Sequence
from .sequences import Sequences
from .steps import DeviceLost, Steps

log = structlog.get_logger()


class Run:
    """Has room for all its steps from the beginning, and gives back at its end what it did not need.

    What is reserved beyond what was computed is `num_ahead`: who spends blocks by what is reported of them need not
    know of it, since it is no more than what they gave leave to take.
    """

    def __init__(
        self, steps: Steps, kv_cache: KVCache, sequences: Sequences, rows: Seq[Sequence], num_steps: int
    ) -> None:
        """Reserves blocks for `num_steps` steps of `rows`. Raises _core.OutOfBlocks, and changes nothing, if the pool
        has too few."""
        self._steps = steps
        self._kv_cache = kv_cache
        self._sequences = sequences
        self._rows: list[Sequence | None] = list(rows)  # None: ended
        self._begun_with = rows
        self._failed: Exception | None = None  # to begin
        self._disturbed = False
        self._may_grow = False
        self.num_left = num_steps
        try:
            self._reserve(num_steps)
        except _core.OutOfBlocks:
            self._give_back()
            raise

    @property
    def num_ahead(self) -> int:
        """Blocks that are reserved and hold nothing yet."""
        size = self._kv_cache.pool.block_size
        return sum(row.table.num_blocks - -(-row.num_computed // size) for row in self._live)

    @property
    def over(self) -> bool:
        """Whether nothing more is wanted of it: it has run, or most of its rows are empty."""
        return self.num_left == 0 or self._disturbed or 2 * len(self._live) < len(self._begun_with)

    @property
    def _live(self) -> list[Sequence]:
        return [row for row in self._rows if row is not None]

    def begin(self) -> None:
        """Lets the device begin. A failure shows with the first step."""
        try:
            self._steps.begin_run(self._begun_with, self.num_left)
        except DeviceLost:
            raise
        except Exception as error:
            self._failed = error

    def next(self) -> Outcome | None:
        """Waits for the next step; None if the run has ended. If the step fails, all its sequences do."""
        if not self._rows:
            return None
        try:
            if self._failed is not None:
                raise self._failed
            computed = self._steps.next()
        except DeviceLost:
            raise
        except Exception as error:  # a fault of the device or a bug: the batch fails, the worker lives
            log.exception("step_failed", sequences=len(self._live))
            ended: list[Ended] = []
            for row in self._live:
                ended += self._sequences.fail(row, f"the step failed: {type(error).__name__}")
            self._rows = []
            return Outcome(ended=ended)
        if computed is None:
            return None
        self.num_left -= 1
        return self._take(computed.tokens, computed.step_us)

    def extend(self, num_steps: int) -> bool:
        """Makes it longer, if there are blocks for that and the device has not ended it already."""
        if self.over or not self._may_grow:
            return False
        if not self._extend(num_steps):
            for row in self._live:
                row.table.trim(_reach(row, self.num_left + 1))
            self._may_grow = True
            return False
        self.num_left += num_steps
        return True

    def _extend(self, num_steps: int) -> bool:
        try:
            self._reserve(self.num_left + num_steps)
        except _core.OutOfBlocks:
            return False
        return self._steps.extend(num_steps)

    def stop(self) -> None:
        """Ends it soon; `next` gives what is computed until then."""
        self._steps.stop()

    def close(self) -> None:
        """Gives back what was reserved in vain. After `next` gave None."""
        self._give_back()
        self._rows = []

    def _reserve(self, num_steps: int) -> None:
        """Where the step after the last goes is looked up by the last, if the run is made longer meanwhile: so there is
        room for one more, if the pool has that."""
        try:
            self._reserve_for(num_steps + 1)
            self._may_grow = True
        except _core.OutOfBlocks:
            for row in self._live:
                row.table.trim(_reach(row, num_steps))
            self._reserve_for(num_steps)
            self._may_grow = False

    def _reserve_for(self, num_steps: int) -> None:
        for row in self._live:
            self._kv_cache.reserve(row.table, _reach(row, num_steps))

    def _give_back(self) -> None:
        for row in self._live:
            row.table.trim(row.num_computed)

    def _take(self, tokens: list[int], step_us: int | None) -> Outcome:
        outcome = Outcome(step_us=step_us)
        sequence_ids, token_ids, ended = outcome.sequence_ids, outcome.token_ids, outcome.ended
        for place, (row, token_id) in enumerate(zip(self._rows, tokens, strict=True)):
            if row is None:
                continue
            if token_id < 0:
                assert token_id != NO_TOKEN, "the device ended a sequence that goes on"
                # What made the logits so must not be found by the next prompt: nothing more is published.
                ended += self._sequences.fail(row, "the model's logits are not finite")
                self._rows[place] = None
                continue
            row.advance(1)
            sequence_ids.append(row.spec.sequence_id)
            token_ids.append(token_id)
            if reason := row.append(token_id):
                # The device may go on with it, into blocks that are free now.
                self._disturbed |= not row.stops_on_device
                stop_token_id = token_id if reason is EndReason.STOP else 0
                ended.append(self._sequences.end(row, reason, stop_token_id=stop_token_id))
                self._rows[place] = None
        return outcome


def _reach(row: Sequence, num_steps: int) -> int:
    """Tokens in the KV cache after so many more steps."""
    return row.num_computed + min(num_steps, row.num_remaining)
