"""Logprobs of the tokens of prompts, found in the step that computes what comes before each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from .messages import PromptLogprobs
from .ops.logprobs import logprobs
from .steps import Row

# Logits of so many places at a time. Those of a whole chunk would take more memory than all else of its step; these
# take no more than the logits of the decoding sequences that a step is measured with, and are gone before those come.
PLACES_AT_A_TIME = 64


def asked_tokens(rows: Seq[Row]) -> list[int]:
    """Tokens of the step behind which logits are wanted for `find_prompt_logprobs`, in the order of `rows`."""
    wanted: list[int] = []
    begin = 0
    for row in rows:
        wanted += range(begin, begin + len(row.prompt_places))
        begin += row.count
    return wanted


def find_prompt_logprobs(
    rows: Seq[Row], states: Tensor, logits_of: Callable[[Tensor], Tensor]
) -> Iterator[PromptLogprobs]:
    """What the rows ask for, in pieces, by `states` [P, E] of `asked_tokens`; `logits_of` makes [P, E] to [P, V]."""
    begin = 0
    for row in rows:
        places = row.prompt_places
        for first in range(0, len(places), PLACES_AT_A_TIME):
            piece = places[first : first + PLACES_AT_A_TIME]
            yield _find(row, piece, logits_of(states[begin : begin + len(piece)]))
            begin += len(piece)


def _find(row: Row, places: range, logits: Tensor) -> PromptLogprobs:
    spec, device = row.sequence.spec, logits.device
    num_top = min(spec.sampling.num_prompt_logprobs or 0, logits.shape[1])
    token_ids = torch.tensor(spec.token_ids[places.start : places.stop]).to(device)
    wanted = torch.full((len(places),), num_top, dtype=torch.int32, device=device)
    found = logprobs(logits, token_ids, wanted, num_top)
    return PromptLogprobs(
        spec.sequence_id,
        places.start,
        tuple(found.chosen.tolist()),
        tuple(found.top_ids.flatten().tolist()),
        tuple(found.top_logprobs.flatten().tolist()),
    )
