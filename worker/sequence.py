"""One sequence on a worker: its tokens, how far its KV cache reaches, and when it ends."""

from __future__ import annotations

import dataclasses

import numpy as np

from . import _core
from .grammars import Constraint
from .kv_cache import Copied
from .messages import EndReason, Fork, NewSequence, Sampling
from .ops.commit import NUM_STOP_IDS
from .ops.penalties import PenaltyCounts, PenaltyRow
from .ops.sampler import packed_row
from .sequence_group import SequenceGroup

_MAX_INT32 = 2**31 - 1


class Sequence:
    """A sequence between NewSequence and its end. Its KV cache holds the first `num_computed` of `token_ids`.

    The block table knows what the full ones of its blocks hold, and not always what the last one does. A leader has
    `forks` until its prefill is complete and they begin. While a sequence is swapped out its table is empty, and blocks
    of host memory hold what its KV cache held; while it comes back it has `returning`, which is recorded when it has.
    """

    __slots__ = (
        "_block_size", "_num_counted", "_penalties", "constraint", "forks", "group", "host_blocks", "in_decode_set",
        "num_cached", "num_computed", "params", "returning", "spec", "stop_ids", "table", "token_ids",
    )  # fmt: skip

    def __init__(
        self, spec: NewSequence, table: _core.BlockTable, group: SequenceGroup, constraint: Constraint | None = None
    ) -> None:
        self.spec = spec
        self.table = table
        self._block_size = table.block_size
        self.group = group
        group.join(spec.sequence_id, table)
        self.token_ids = list(spec.token_ids)
        self.num_computed = 0
        self.num_cached = 0
        self.in_decode_set = False
        self.forks: tuple[Fork, ...] = spec.forks
        self.host_blocks: list[int] = []
        self.returning: Copied | None = None
        # As steps take them: a row of `SamplingRows.packed` (its position is filled in), and of stop ids.
        self.params = packed_params(spec.sampling, spec.sampling.seed)
        self.stop_ids = _packed_stop_ids(spec.stop_token_ids)
        self._penalties: PenaltyCounts | None = None
        self._num_counted = len(self.token_ids)
        self.constraint = constraint

    @property
    def num_missing(self) -> int:
        """Known tokens that are not in the KV cache."""
        return len(self.token_ids) - self.num_computed

    @property
    def stops_on_device(self) -> bool:
        """Whether `stop_ids` has all of its stop ids, so that a device ends it where the host does."""
        return len(self.spec.stop_token_ids) <= NUM_STOP_IDS

    @property
    def prefill_complete(self) -> bool:
        """Whether the tokens it came with have all been computed."""
        return self.num_computed >= len(self.spec.token_ids)

    @property
    def decodes(self) -> bool:
        """Whether it takes part in every step."""
        return self.in_decode_set and self.prefill_complete and self.returning is None and self.may_draw

    @property
    def may_draw(self) -> bool:
        """Whether its next token can be chosen as soon as there are logits for it."""
        return self.constraint is None or self.constraint.ready

    @property
    def needs_host(self) -> bool:
        """Whether choosing its tokens takes more than `sample`, so that a device does not do it by itself."""
        sampling = self.spec.sampling
        wants_prompt = sampling.num_prompt_logprobs is not None and not self.prefill_complete
        return (
            sampling.penalties is not None
            or sampling.num_logprobs is not None
            or sampling.structure is not None
            or wants_prompt
        )

    def penalties(self, vocab_size: int) -> PenaltyCounts | None:
        """What is done to its logits for the next token, if anything."""
        asked = self.spec.sampling.penalties
        if asked is None:
            return None
        if self._penalties is None:
            ends = [token_id for token_id in self.spec.stop_token_ids if token_id < vocab_size]
            known = self.token_ids[: self._num_counted]
            row = PenaltyRow(
                repetition=asked.repetition,
                frequency=asked.frequency,
                presence=asked.presence,
                bias=dict(asked.bias),
                allowed_ids=asked.allowed_ids,
                min_tokens_left=max(0, asked.prompt_tokens + asked.min_tokens - len(known)),
                end_ids=ends,
                prompt_ids=known[: asked.prompt_tokens],
                drawn_ids=known[asked.prompt_tokens :],
                bad=asked.bad,
            )
            self._penalties = PenaltyCounts(row, vocab_size)
        self._penalties.count(self.token_ids[self._num_counted :])
        self._num_counted = len(self.token_ids)
        return self._penalties

    def fork(self, fork: Fork, constraint: Constraint | None = None) -> Sequence:
        """One that goes on from here with its own seed, and shares all blocks until it writes. It gets its first token
        at once."""
        self._enter()
        sampling = dataclasses.replace(self.spec.sampling, seed=fork.seed)
        spec = dataclasses.replace(self.spec, sequence_id=fork.sequence_id, sampling=sampling, forks=())
        child = Sequence(spec, self.table.fork(), self.group, constraint)
        child.num_computed, child.num_cached = self.num_computed, self.num_cached
        child.in_decode_set = self.in_decode_set
        return child

    def leave(self) -> tuple[int, int]:
        """Gives its blocks back for good: how many it had that no sibling has, and how many had no other user.

        Room that was reserved in vain is not counted.
        """
        if self.constraint is not None:
            self.constraint.close()
        self.table.trim(self.num_computed)
        return self.group.leave(self.spec.sequence_id)

    def find_prefix(self) -> None:
        """Takes what the prefix cache has, but for the last token: that one must be computed to get logits. Whose
        prompt's logprobs are wanted takes nothing, since the cache has none."""
        if self.spec.sampling.num_prompt_logprobs is not None:
            return
        self.num_cached = self.table.match_prefix(self.token_ids[:-1])
        self.num_computed = self.num_cached

    def advance(self, count: int) -> None:
        """`count` more tokens are in the KV cache; others find the blocks that became full."""
        self.num_computed += count
        # Token by token that would cost more than all else that is done for a decode step.
        if count > 1 or self.num_computed % self._block_size == 0:
            self._enter()

    def _enter(self) -> None:
        self.table.commit(self.token_ids[self.table.num_tokens : self.num_computed])

    def append(self, token_id: int) -> EndReason | None:
        """Takes the next token; says why the sequence ends with it, if it does. Stop beats length."""
        self.token_ids.append(token_id)
        reason = self._end_at(token_id)
        if reason is None and self.constraint is not None:
            self.constraint.advance(token_id)
        return reason

    def _end_at(self, token_id: int) -> EndReason | None:
        if token_id in self.spec.stop_token_ids:
            return EndReason.STOP
        if len(self.token_ids) >= self.spec.max_length:
            return EndReason.LENGTH
        return None


def packed_params(sampling: Sampling, seed: int) -> bytes:
    """A row of `SamplingRows.packed` for this seed, at position 0."""
    return packed_row(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, seed)


def _packed_stop_ids(token_ids: frozenset[int]) -> bytes:
    # What is no token in any vocabulary never comes.
    known = sorted(token_id for token_id in token_ids if token_id <= _MAX_INT32)[:NUM_STOP_IDS]
    return np.array(known + [-1] * (NUM_STOP_IDS - len(known)), np.int32).tobytes()
