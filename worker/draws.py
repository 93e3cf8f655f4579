"""Choosing the tokens of a step in which some requests want more than what a device does by itself."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from .messages import TokenLogprobs
from .ops.logprobs import logprobs
from .ops.penalties import Penalties, PenaltyCounts, PenaltyRow, mask_of, penalize
from .ops.sampler import sample_packed
from .sequence import Sequence
from .steps import Computed, Row

# In place of a token where penalties and grammars leave none.
NOTHING_LEFT = -3


def draw(logits: Tensor, params: Tensor, rows: Seq[Row]) -> Computed:
    """A token for each draw of `rows`, by logits [D, V] and params [D] as `sample_packed` takes them; with logprobs
    for those that want some, of the logits as they came. May change the logits."""
    drawing = [row.sequence for row in rows for _ in range(row.num_draws)]
    raw = logits
    changes = any(each.spec.sampling.penalties or each.constraint for each in drawing)
    if changes:
        raw = logits.clone()
        penalize(logits, _penalties(drawing, logits))
    token_ids = sample_packed(logits, params)
    wanted = any(sequence.spec.sampling.num_logprobs is not None for sequence in drawing)
    # Before anything waits for the tokens.
    found = _logprobs(drawing, raw, token_ids) if wanted else None
    tokens = token_ids.tolist()
    if changes and min(tokens) < 0:
        # Where the model's own logits have a token it is what was asked that left none.
        usable = (sample_packed(raw, params) >= 0).tolist()
        tokens = [NOTHING_LEFT if own and token < 0 else token for token, own in zip(tokens, usable, strict=True)]
    return Computed(tokens, logprobs=found)


def _penalties(drawing: Seq[Sequence], logits: Tensor) -> Penalties:
    vocab_size = logits.shape[1]
    none = PenaltyCounts(PenaltyRow(), vocab_size)
    rows: dict[int, PenaltyCounts] = {}
    for sequence in drawing:
        # A leader draws for its forks, too.
        if id(sequence) not in rows:
            row = sequence.penalties(vocab_size) or none
            rows[id(sequence)] = row if sequence.constraint is None else _masked(row, sequence, vocab_size)
    return Penalties.of([rows[id(sequence)] for sequence in drawing], vocab_size, 0, logits.device)


def _masked(row: PenaltyCounts, sequence: Sequence, vocab_size: int) -> PenaltyCounts:
    """The row, with no token that the sequence's grammar does not allow. One that can only end may do so, whatever the
    least number of its tokens."""
    constraint, structure = sequence.constraint, sequence.spec.sampling.structure
    assert constraint is not None
    assert constraint.mask is not None, "it takes part in no step without its mask"
    assert structure is not None
    only_ends = not (constraint.mask & ~mask_of(structure.end_ids, vocab_size)).any()
    return row.masked(constraint.mask, may_end=only_ends)


def _logprobs(drawing: Seq[Sequence], logits: Tensor, token_ids: Tensor) -> list[TokenLogprobs | None]:
    wanted = [sequence.spec.sampling.num_logprobs for sequence in drawing]
    num_top = [-1 if count is None else min(count, logits.shape[1]) for count in wanted]
    on_device = torch.tensor(num_top, dtype=torch.int32).to(logits.device)
    found = logprobs(logits, token_ids, on_device, max(num_top))
    columns = zip(num_top, found.chosen.tolist(), found.top_ids.tolist(), found.top_logprobs.tolist(), strict=True)
    return [
        None if count < 0 else TokenLogprobs(chosen, tuple(ids[:count]), tuple(values[:count]))
        for count, chosen, ids, values in columns
    ]
