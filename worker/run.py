"""Decode steps over the same sequences that a device computes without asking: the host's side of it.

Knows no plans and no commands.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from . import _core
from .kv_cache import KVCache
from .messages import EndReason
from .ops.commit import NO_TOKEN
from .ops.follow import NONE
from .outcome import Outcome
from .sequence import Sequence
from .sequences import Sequences
from .steps import Computed, Row, Steps
from .work import Work


class Run(Work):
    """Has room for all its steps from the beginning."""

    def __init__(self, steps: Steps, kv_cache: KVCache, sequences: Sequences, rows: Seq[Row], num_steps: int) -> None:
        """Reserves blocks for `num_steps` steps of `rows`. Raises _core.OutOfBlocks, and changes nothing, if the pool
        has too few."""
        super().__init__(steps, kv_cache, sequences, rows)
        self._places: list[Row | None] = list(rows)  # None: ended
        self._disturbed = False
        self._may_grow = False
        self.num_left = num_steps
        try:
            self._reserve(num_steps)
        except _core.OutOfBlocks:
            self._trim(0)
            raise

    @property
    def over(self) -> bool:
        """See Work. It has run, or most of its rows are empty."""
        return self.num_left == 0 or self._disturbed or 2 * len(self._live_rows) < len(self.rows)

    @property
    def live(self) -> list[Sequence]:
        """See Work."""
        return [row.sequence for row in self._live_rows if self._sequences.runs(row.sequence)]

    @property
    def _live_rows(self) -> list[Row]:
        return [row for row in self._places if row is not None]

    def after(self, num_steps: int) -> list[Row] | None:
        """See Work."""
        if not all(row.sequence.stops_on_device for row in self._live_rows):
            return None
        ahead = self.num_taken + num_steps
        if ahead == 0:
            return self._live_rows
        return [
            Row(row.sequence, 1, row.first + ahead, place if num_steps else NONE)
            for place, row in enumerate(self._places)
            if row is not None and row.first + ahead + 1 < row.sequence.spec.max_length
        ]

    def extend(self, num_steps: int) -> bool:
        """Makes it longer, if there are blocks for that and the device has not ended it already."""
        if self.over or not self._may_grow:
            return False
        if not self._extend(num_steps):
            self._trim(self.num_left + 1)
            self._may_grow = True
            return False
        self.num_left += num_steps
        return True

    def _begin(self) -> bool:
        return self._steps.begin_run(self.rows, self.num_left)

    def _extend(self, num_steps: int) -> bool:
        try:
            self._reserve(self.num_left + num_steps)
        except _core.OutOfBlocks:
            return False
        return self._steps.extend(num_steps)

    def _reserve(self, num_steps: int) -> None:
        """Where the step after the last goes is looked up by the last, if the run is made longer meanwhile: so there is
        room for one more, if the pool has that."""
        try:
            self._reserve_for(num_steps + 1)
            self._may_grow = True
        except _core.OutOfBlocks:
            self._trim(num_steps)
            self._reserve_for(num_steps)
            self._may_grow = False

    def _reserve_for(self, num_steps: int) -> None:
        for row in self._live_rows:
            self._kv_cache.reserve(row.sequence.table, self._reach(row, num_steps))

    def _trim(self, num_steps: int) -> None:
        for row in self._live_rows:
            row.sequence.table.trim(self._reach(row, num_steps))

    def _reach(self, row: Row, num_steps: int) -> int:
        """Tokens in the KV cache after so many more steps; the last token of all is never there."""
        return min(row.first + self.num_taken + num_steps, row.sequence.spec.max_length - 1)

    def _take(self, computed: Computed) -> Outcome:
        self.num_left -= 1
        outcome = Outcome(step_us=computed.step_us)
        sequence_ids, token_ids, ended = outcome.sequence_ids, outcome.token_ids, outcome.ended
        if self.num_taken == 1:
            self._forget_ended()
        for place, (row, token_id) in enumerate(zip(self._places, computed.tokens, strict=True)):
            if row is None:
                continue
            sequence = row.sequence
            if token_id < 0:
                assert token_id != NO_TOKEN, "the device ended a sequence that goes on"
                # What made the logits so must not be found by the next prompt: nothing more is published.
                ended += self._sequences.fail(sequence, "the model's logits are not finite")
                self._places[place] = None
                continue
            sequence.advance(1)
            sequence_ids.append(sequence.spec.sequence_id)
            token_ids.append(token_id)
            if reason := sequence.append(token_id):
                stop_token_id = token_id if reason is EndReason.STOP else 0
                ended.append(self._sequences.end(sequence, reason, stop_token_id=stop_token_id))
                self._end(place, sequence)
        return outcome

    def _forget_ended(self) -> None:
        """Those that ended with the step before, which was on its way when this began."""
        for place, row in enumerate(self._places):
            if row is not None and not self._sequences.runs(row.sequence):
                self._end(place, row.sequence)

    def _end(self, place: int, sequence: Sequence) -> None:
        # The device may go on with it, into blocks that are free now.
        self._disturbed |= not sequence.stops_on_device
        self._places[place] = None
