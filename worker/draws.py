"""Choosing the tokens of a step in which some requests want more than what a device does by itself."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from .messages import TokenLogprobs
from .ops.logprobs import logprobs
from .ops.penalties import Penalties, PenaltyCounts, PenaltyRow, penalize
from .ops.sampler import sample_packed
from .sequence import Sequence
from .steps import Computed, Row


def draw(logits: Tensor, params: Tensor, rows: Seq[Row]) -> Computed:
    """A token for each draw of `rows`, by logits [D, V] and params [D] as `sample_packed` takes them; with logprobs
    for those that want some, of the logits as they came. May change the logits."""
    drawing = [row.sequence for row in rows for _ in range(row.num_draws)]
    raw = logits
    if any(sequence.spec.sampling.penalties for sequence in drawing):
        raw = logits.clone()
        penalize(logits, _penalties(drawing, logits))
    token_ids = sample_packed(logits, params)
    wanted = any(sequence.spec.sampling.num_logprobs is not None for sequence in drawing)
    # Before anything waits for the tokens.
    found = _logprobs(drawing, raw, token_ids) if wanted else None
    return Computed(token_ids.tolist(), logprobs=found)


def _penalties(drawing: Seq[Sequence], logits: Tensor) -> Penalties:
    vocab_size = logits.shape[1]
    none = PenaltyCounts(PenaltyRow(), vocab_size)
    return Penalties.of([sequence.penalties(vocab_size) or none for sequence in drawing], vocab_size, 0, logits.device)


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
