"""Turns the rows of a step into the tensors of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch

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


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The input of one forward pass over B sequences and T tokens, R of the sequences getting a token."""

    token_ids: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T]
    attention: AttentionBatch
    logit_rows: torch.Tensor  # int64 [R], indices into T
    sampling: SamplingRows  # R rows


def build_batch(rows: Seq[Row], device: torch.device) -> StepBatch:
    """The tensors of a step. `rows` must not be empty, and every row's table must have room for its tokens."""
    counts = np.fromiter((row.count for row in rows), np.int32, len(rows))  # [B]
    query_starts = np.zeros(len(rows) + 1, np.int32)  # [B + 1]
    np.cumsum(counts, out=query_starts[1:])
    num_tokens = int(query_starts[-1])
    token_ids = np.empty(num_tokens, np.int64)
    positions = np.empty(num_tokens, np.int64)
    slots = np.empty(num_tokens, np.int64)
    context_lens = np.empty(len(rows), np.int32)
    block_tables = np.zeros((len(rows), max(row.sequence.table.num_blocks for row in rows)), np.int32)
    for index, row in enumerate(rows):
        sequence, first = row.sequence, row.sequence.num_computed
        last = first + row.count
        span = slice(int(query_starts[index]), int(query_starts[index + 1]))
        token_ids[span] = sequence.token_ids[first:last]
        positions[span] = np.arange(first, last)
        slots[span] = sequence.table.slots(first, row.count)
        context_lens[index] = last
        sequence.table.write_row(block_tables[index])
    ready = [index for index, row in enumerate(rows) if row.gets_token]
    attention = AttentionBatch(
        query_starts=torch.from_numpy(query_starts).to(device),
        context_lens=torch.from_numpy(context_lens).to(device),
        block_tables=torch.from_numpy(block_tables).to(device),
        slots=torch.from_numpy(slots).to(device),
    )
    return StepBatch(
        token_ids=torch.from_numpy(token_ids).to(device),
        positions=torch.from_numpy(positions).to(device),
        attention=attention,
        logit_rows=torch.from_numpy(query_starts[1:][ready].astype(np.int64) - 1).to(device),
        sampling=_sampling_rows([rows[index].sequence for index in ready]),
    )


def _sampling_rows(sequences: Seq[Sequence]) -> SamplingRows:
    specs = [sequence.spec.sampling for sequence in sequences]
    return SamplingRows(
        temperature=np.array([spec.temperature for spec in specs], np.float32),
        top_k=np.array([spec.top_k for spec in specs], np.int32),
        top_p=np.array([spec.top_p for spec in specs], np.float32),
        min_p=np.array([spec.min_p for spec in specs], np.float32),
        seed=np.array([spec.seed for spec in specs], np.uint64),
        position=np.array([len(sequence.token_ids) for sequence in sequences], np.int64),
    )
