"""A step in which prompts are computed beside the sequences that decode. Knows no plans and no commands."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice, repeat

from tercet.errors import InvalidFieldError

from . import _core
from .draws import NOTHING_LEFT
from .kv_cache import KVCache
from .messages import Chunk, Ended, EndReason, Failure, PrefillProgress, PromptLogprobs
from .ops.commit import NOT_FINITE
from .outcome import Outcome
from .sequence import Sequence
from .sequences import Sequences
from .steps import Computed, Row, Steps
from .work import Work


def missing_chunks(sequences: Sequences, chunks: Iterable[Chunk], places: Mapping[Sequence, Row]) -> list[Row]:
    """Whose prompts to compute, and how many tokens of each. Takes what the prefix cache has of those that begin.

    `places` has those that are in steps on their way, as these leave them.
    """
    wanted = []
    for chunk in chunks:
        sequence = sequences.get(chunk.sequence_id)
        # A prefix hit may have completed the prefill earlier than the scheduler could know.
        if sequence is None or sequence.prefill_complete or chunk.num_tokens == 0:
            continue
        if sequence in places:
            first = places[sequence].first
        else:
            # Not again after a step that was to begin and did not.
            if sequence.num_computed == 0 and sequence.table.num_blocks == 0:
                sequence.find_prefix()
            first = sequence.num_computed
        # Of one whose next token cannot be chosen yet the last token is left, so that there are logits when it can.
        missing = len(sequence.token_ids) - first - (not sequence.may_draw)
        if missing > 0:
            wanted.append(Row(sequence, min(chunk.num_tokens, missing), first))
    return wanted


def _problem(token: int) -> str | Failure:
    """Why there is no token."""
    if token == NOTHING_LEFT:
        return Failure(InvalidFieldError.reason, "what the request asks for leaves no token to go on with")
    return "the model's logits are not finite"


class MixedStep(Work):
    """So many tokens of each sequence, computed together. One without room ends."""

    def __init__(
        self, steps: Steps, kv_cache: KVCache, sequences: Sequences, wanted: Iterable[Row], *, alone: bool
    ) -> None:
        """Reserves their blocks. Unless `alone`, while others are on their way, raises _core.OutOfBlocks if the pool
        has too few."""
        rows, self._ended = [], list[Ended]()
        for row in wanted:
            try:
                kv_cache.reserve(row.sequence.table, row.first + row.count)
            except _core.OutOfBlocks as error:
                if not alone:
                    raise
                # Credits make this impossible; a scheduler that breaks them must not take the others down.
                self._ended += sequences.fail(row.sequence, str(error))
                continue
            rows.append(row)
        super().__init__(steps, kv_cache, sequences, rows)
        self._num_draws = [row.num_draws for row in rows]

    @property
    def over(self) -> bool:
        """See Work."""
        return self.num_taken > 0

    def after(self, num_steps: int) -> list[Row] | None:
        """See Work. Forks begin on the host."""
        assert num_steps == 1, "it is a single step"
        places = []
        draw = 0
        for row, num_draws in zip(self.rows, self._num_draws, strict=True):
            sequence, first = row.sequence, row.first + row.count
            if sequence.forks or not sequence.stops_on_device:
                return None
            if num_draws == 0:
                places.append(Row(sequence, 0, first))
                continue
            if sequence.in_decode_set and first + 1 < sequence.spec.max_length:
                places.append(Row(sequence, 1, first, draw))
            draw += 1
        return places

    def next(self) -> Outcome | None:
        """See Work."""
        if self.over:
            return None
        outcome = super().next() if self.rows else Outcome()
        assert outcome is not None, "a step that was begun is computed"
        self.num_taken = 1
        return dataclasses.replace(outcome, ended=[*self._ended, *outcome.ended]) if self._ended else outcome

    def _begin(self) -> bool:
        return not self.rows or self._steps.begin_step(self.rows)

    def _take(self, computed: Computed) -> Outcome:
        outcome, sequences = Outcome(step_us=computed.step_us), self._sequences
        prompts = defaultdict[int, list[PromptLogprobs]](list)
        for part in computed.prompt_logprobs:
            prompts[part.sequence_id].append(part)
        next_token, next_logprobs = iter(computed.tokens), iter(computed.logprobs or repeat(None))
        for row, num_draws in zip(self.rows, self._num_draws, strict=True):
            sequence, in_prefill = row.sequence, not row.sequence.prefill_complete
            drawn = list(islice(next_token, num_draws))
            logprobs = list(islice(next_logprobs, num_draws))
            if not sequences.runs(sequence):  # it has ended with a step before
                continue
            of_prompt = prompts.get(sequence.spec.sequence_id, ())
            if (drawn and min(drawn) < 0) or any(math.isnan(x) for part in of_prompt for x in part.logprobs):
                # Before its blocks are published: what made the logits so must not be found by the next prompt.
                outcome.ended.extend(sequences.fail(sequence, _problem(min(drawn, default=NOT_FINITE))))
                continue
            sequence.advance(row.count)
            outcome.prompt_logprobs.extend(of_prompt)
            if in_prefill:
                progress = PrefillProgress(sequence.spec.sequence_id, sequence.num_computed, sequence.num_cached)
                outcome.prefills.append(progress)
                outcome.chunk_sizes.append(row.count)
            if not drawn:
                continue
            members = [sequence, *sequences.begin_forks(sequence)] if sequence.forks else [sequence]
            for member, token_id, of_token in zip(members, drawn, logprobs, strict=True):
                outcome.sequence_ids.append(member.spec.sequence_id)
                outcome.token_ids.append(token_id)
                if of_token is not None:
                    outcome.logprobs.append((member.spec.sequence_id, of_token))
                if reason := member.append(token_id):
                    stop_token_id = token_id if reason is EndReason.STOP else 0
                    outcome.ended.append(sequences.end(member, reason, stop_token_id=stop_token_id))
        return outcome
