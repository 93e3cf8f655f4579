"""Turns the rows of a step into the tensors of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch

from . import _core
from .ops.attention import AttentionBatch
from .ops.sampler import SamplingRows
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Row:
    """`count` tokens of a sequence to compute in this step, from its num_computed on; blocks are reserved."""

    sequence: Sequence
    count: int

    @property
    def gets_token(self) -> bool:
        """Whether the step reaches the end of the known tokens, so that the next one can be chosen."""
        return self.count == self.sequence.num_missing

    @property
    def token_ids(self) -> list[int]:
        """The tokens to compute."""
        first = self.sequence.num_computed
        return self.sequence.token_ids[first : first + self.count]


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The input of one forward pass over B sequences and T tokens, R of the sequences getting a token.

    A leader whose prefill ends here gets one for each of its forks as well, behind its own.
    """

    token_ids: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T]
    attention: AttentionBatch
    logit_rows: torch.Tensor  # int64 [R], indices into T
    # int64, indices into R: which logits each token is sampled from. None: a token for each row.
    sampled_rows: torch.Tensor | None
    sampling: SamplingRows  # a row for each token


def build_batch(rows: Seq[Row], device: torch.device) -> StepBatch:
    """The tensors of a step. `rows` must not be empty, and every row's table must have room for its tokens."""
    firsts = np.array([row.sequence.num_computed for row in rows], np.int64)  # [B]
    counts = np.array([row.count for row in rows], np.int64)  # [B]
    query_starts = np.zeros(len(rows) + 1, np.int32)  # [B + 1]
    np.cumsum(counts, out=query_starts[1:])
    num_tokens = int(query_starts[-1])
    positions = np.empty(num_tokens, np.int64)
    slots = np.empty(num_tokens, np.int64)
    tables = [row.sequence.table for row in rows]
    block_tables = np.zeros((len(rows), max(table.num_blocks for table in tables)), np.int32)
    _core.place_rows(tables, firsts, counts, positions, slots, block_tables)
    ready = [index for index, row in enumerate(rows) if row.gets_token]
    attention = AttentionBatch(
        query_starts=torch.from_numpy(query_starts).to(device),
        context_lens=torch.from_numpy((firsts + counts).astype(np.int32)).to(device),
        block_tables=torch.from_numpy(block_tables).to(device),
        slots=torch.from_numpy(slots).to(device),
        total_context=int((firsts + counts).sum()),
    )
    sequences = [rows[index].sequence for index in ready]
    return StepBatch(
        token_ids=torch.tensor([token_id for row in rows for token_id in row.token_ids], device=device),
        positions=torch.from_numpy(positions).to(device),
        attention=attention,
        logit_rows=torch.from_numpy(query_starts[1:][ready].astype(np.int64) - 1).to(device),
        sampled_rows=_sampled_rows(sequences, device),
        sampling=_sampling_rows(sequences),
    )


def _sampled_rows(sequences: Seq[Sequence], device: torch.device) -> torch.Tensor | None:
    if not any(sequence.forks for sequence in sequences):
        return None
    rows = [row for row, sequence in enumerate(sequences) for _ in range(1 + len(sequence.forks))]
    return torch.tensor(rows, device=device)


def _sampling_rows(sequences: Seq[Sequence]) -> SamplingRows:
    drawn = [  # (how, with which seed, at which position)
        (sequence.spec.sampling, seed, len(sequence.token_ids))
        for sequence in sequences
        for seed in (sequence.spec.sampling.seed, *(fork.seed for fork in sequence.forks))
    ]
    return SamplingRows(
        temperature=np.array([how.temperature for how, _, _ in drawn], np.float32),
        top_k=np.array([how.top_k for how, _, _ in drawn], np.int32),
        top_p=np.array([how.top_p for how, _, _ in drawn], np.float32),
        min_p=np.array([how.min_p for how, _, _ in drawn], np.float32),
        seed=np.array([seed for _, seed, _ in drawn], np.uint64),
        position=np.array([position for _, _, position in drawn], np.int64),
    )
