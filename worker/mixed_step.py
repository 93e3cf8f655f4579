"""A step in which prompts are computed beside the sequences that decode. Knows no plans and no commands."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, repeat

import structlog

from . import _core
from .kv_cache import KVCache
from .messages import Chunk, EndReason, PrefillProgress
from .outcome import Outcome
from .sequence import Sequence
from .sequences import Sequences
from .steps import Computed, DeviceLost, Row, Steps

log = structlog.get_logger()


def missing_chunks(sequences: Sequences, chunks: Iterable[Chunk]) -> list[tuple[Sequence, int]]:
    """Whose prompts to compute, and how many tokens of each. Takes what the prefix cache has of those that begin."""
    wanted = []
    for chunk in chunks:
        sequence = sequences.get(chunk.sequence_id)
        # A prefix hit may have completed the prefill earlier than the scheduler could know.
        if sequence is None or sequence.prefill_complete or chunk.num_tokens == 0:
            continue
        if sequence.num_computed == 0:
            sequence.find_prefix()
        wanted.append((sequence, min(chunk.num_tokens, sequence.num_missing)))
    return wanted


class MixedStep:
    """So many tokens of each sequence, computed together. One without room ends; if the step fails, all of them do."""

    def __init__(
        self, steps: Steps, kv_cache: KVCache, sequences: Sequences, wanted: Iterable[tuple[Sequence, int]]
    ) -> None:
        """Reserves their blocks."""
        self._steps = steps
        self._sequences = sequences
        self._outcome = Outcome()
        self._rows: list[Row] = []
        self._failed: Exception | None = None  # to begin
        for sequence, count in wanted:
            try:
                kv_cache.reserve(sequence.table, sequence.num_computed + count)
            except _core.OutOfBlocks as error:
                # Credits make this impossible; a scheduler that breaks them must not take the others down.
                self._outcome.ended.extend(sequences.fail(sequence, str(error)))
                continue
            self._rows.append(Row(sequence, count))

    def begin(self) -> None:
        """Lets the device begin. A failure shows at the end."""
        try:
            if self._rows:
                self._steps.begin_step(self._rows)
        except DeviceLost:
            raise
        except Exception as error:
            self._failed = error

    def finish(self) -> Outcome:
        """Waits for the step."""
        if not self._rows:
            return self._outcome
        try:
            if self._failed is not None:
                raise self._failed
            computed = self._steps.next()
        except DeviceLost:
            raise
        except Exception as error:  # a fault of the device or a bug: the batch fails, the worker lives
            log.exception("step_failed", sequences=len(self._rows))
            problem = f"the step failed: {type(error).__name__}"
            for row in self._rows:
                self._outcome.ended.extend(self._sequences.fail(row.sequence, problem))
            return self._outcome
        assert computed is not None, "a step that was begun is computed"
        _take(self._rows, computed, self._sequences, self._outcome)
        return self._outcome


def _take(rows: list[Row], computed: Computed, sequences: Sequences, outcome: Outcome) -> None:
    next_token, next_logprobs = iter(computed.tokens), iter(computed.logprobs or repeat(None))
    for row in rows:
        sequence, in_prefill = row.sequence, not row.sequence.prefill_complete
        drawn = list(islice(next_token, row.num_draws))
        logprobs = list(islice(next_logprobs, row.num_draws))
        if drawn and min(drawn) < 0:
            # Before its blocks are published: what made the logits so must not be found by the next prompt.
            outcome.ended.extend(sequences.fail(sequence, "the model's logits are not finite"))
            continue
        sequence.advance(row.count)
        if in_prefill:
            progress = PrefillProgress(sequence.spec.sequence_id, sequence.num_computed, sequence.num_cached)
            outcome.prefills.append(progress)
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
