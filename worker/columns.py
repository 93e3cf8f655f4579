"""The columns of a step's tokens and rows, views of one piece of memory. Knows no sequences.

Dim letters: T tokens, R rows, D draws (tokens to choose), W blocks of a table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .ops.commit import NUM_STOP_IDS, CommitRows
from .ops.follow import FollowRows
from .ops.sampler import PARAMS_BYTES

_ALIGNMENT = 256  # of each column, in bytes


@dataclass(frozen=True, slots=True)
class Columns:
    """Views of one memory. In a run row r has token r and draw r; in other steps a row has any number of tokens, and
    draw d takes the logits of token logit_rows[d]."""

    token_ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    slots: Tensor  # int64 [T], block * S + offset; -1: nowhere
    query_starts: Tensor  # int32 [R + 1]
    context_lens: Tensor  # int32 [R]
    follows: Tensor  # int32 [R], the draw of the step before whose token is the row's first; NONE: it is known
    logit_rows: Tensor  # int64 [D]
    params: Tensor  # uint8 [D, PARAMS_BYTES]
    status: Tensor  # int32 [D], LIVE or EMPTY
    remaining: Tensor  # int32 [D], tokens it may still get
    stop_ids: Tensor  # int32 [D, NUM_STOP_IDS], filled up with -1
    block_tables: Tensor  # int32 [R, W]; last, so that the rows in use are the end of what is copied

    def commit_rows(self, num_rows: int) -> CommitRows:
        """The first rows of a run, as `commit` advances them."""
        return CommitRows(
            self.token_ids, self.positions, self.slots, self.context_lens[:num_rows], self.block_tables[:num_rows],
            self.params[:num_rows], self.status[:num_rows], self.remaining[:num_rows], self.stop_ids[:num_rows],
        )  # fmt: skip

    def follow_rows(self, num_rows: int) -> FollowRows:
        """The first rows of a step, as `follow` completes them. Of those that follow, row r has draw r."""
        return FollowRows(
            self.follows[:num_rows], self.query_starts[: num_rows + 1], self.stop_ids[:num_rows], self.token_ids,
            self.slots, self.context_lens[:num_rows], self.status[:num_rows],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class StepShape:
    """How much of the columns a step uses. `total_context` is the sum of its context_lens, or more."""

    num_tokens: int
    num_rows: int
    num_draws: int
    total_context: int

    def takes(self, other: StepShape) -> bool:
        """Whether `other` can be filled up to this."""
        return (
            other.num_tokens <= self.num_tokens
            and other.num_rows <= self.num_rows
            and other.num_draws <= self.num_draws
            and other.total_context <= self.total_context
        )


class ColumnLayout:
    """Where columns for so many tokens and rows (and as many draws) lie, and in how many bytes."""

    def __init__(self, max_tokens: int, max_rows: int, table_width: int) -> None:
        self._shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            "token_ids": (torch.int64, (max_tokens,)),
            "positions": (torch.int64, (max_tokens,)),
            "slots": (torch.int64, (max_tokens,)),
            "query_starts": (torch.int32, (max_rows + 1,)),
            "context_lens": (torch.int32, (max_rows,)),
            "follows": (torch.int32, (max_rows,)),
            "logit_rows": (torch.int64, (max_rows,)),
            "params": (torch.uint8, (max_rows, PARAMS_BYTES)),
            "status": (torch.int32, (max_rows,)),
            "remaining": (torch.int32, (max_rows,)),
            "stop_ids": (torch.int32, (max_rows, NUM_STOP_IDS)),
            "block_tables": (torch.int32, (max_rows, table_width)),
        }
        self._sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in self._shapes.values()]
        padded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in self._sizes]
        self._offsets: list[int] = np.cumsum([0, *padded]).tolist()
        self.num_bytes = self._offsets[-1]
        self._tables_offset, self._table_bytes = self._offsets[-2], table_width * 4

    def columns(self, memory: Tensor) -> Columns:
        """Views of `memory`, uint8 [num_bytes]."""
        views = zip(self._shapes.items(), self._sizes, self._offsets, strict=False)
        return Columns(
            **{
                name: memory[first : first + size].view(dtype).view(shape)
                for (name, (dtype, shape)), size, first in views
            }
        )

    def used(self, num_rows: int) -> slice:
        """The bytes of all columns and the first rows' tables."""
        return slice(0, self.tables(num_rows).stop)

    def tables(self, num_rows: int) -> slice:
        """The bytes of the first rows' tables."""
        return slice(self._tables_offset, self._tables_offset + num_rows * self._table_bytes)
