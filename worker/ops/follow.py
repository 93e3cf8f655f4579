"""Rows of a step whose first tokens are those that the step before draws. Knows no sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .commit import EMPTY, NUM_STOP_IDS
from .dtypes import KERNELS_BUILT, check_one_device, stream_of

if KERNELS_BUILT:
    from .. import _kernels
if TYPE_CHECKING:
    from .._kernels import StepLoop

# In place of a row of the step before.
NONE = -1


@dataclass(frozen=True, slots=True)
class FollowRows:
    """Columns of R rows with T tokens in all, on one device. Raises ValueError, naming the column, if a dtype or a
    shape does not fit."""

    follows: Tensor  # int32 [R], the row of the step before whose token is this one's first; NONE: it is known
    query_starts: Tensor  # int32 [R + 1]
    stop_ids: Tensor  # int32 [R, NUM_STOP_IDS], filled up with -1
    token_ids: Tensor  # int64 [T]
    slots: Tensor  # int64 [T]
    context_lens: Tensor  # int32 [R]
    status: Tensor  # int32 [R], of the draw with the row's number

    def __post_init__(self) -> None:
        num_rows, num_tokens = len(self.follows), len(self.token_ids)
        shapes = {
            "follows": (torch.int32, (num_rows,)),
            "query_starts": (torch.int32, (num_rows + 1,)),
            "stop_ids": (torch.int32, (num_rows, NUM_STOP_IDS)),
            "token_ids": (torch.int64, (num_tokens,)),
            "slots": (torch.int64, (num_tokens,)),
            "context_lens": (torch.int32, (num_rows,)),
            "status": (torch.int32, (num_rows,)),
        }
        for name, (dtype, shape) in shapes.items():
            column: Tensor = getattr(self, name)
            if column.dtype is not dtype or column.shape != shape or not column.is_contiguous():
                raise ValueError(f"{name}: {column.dtype} {list(column.shape)} does not fit {num_rows} rows")
        check_one_device(**{name: getattr(self, name) for name in shapes})


def follow(rows: FollowRows, loop: StepLoop) -> None:
    """Gives the rows that follow the tokens of the last record that `loop` has by then, in the order of the stream.

    One whose token there is none, or with which its sequence ended, is empty, as `commit` would have left it.
    """
    _kernels.follow_step(
        rows.follows.data_ptr(), rows.query_starts.data_ptr(), rows.stop_ids.data_ptr(), rows.token_ids.data_ptr(),
        rows.slots.data_ptr(), rows.context_lens.data_ptr(), rows.status.data_ptr(), len(rows.follows), loop,
        stream_of(rows.follows),
    )  # fmt: skip


def follow_reference(rows: FollowRows, last_tokens: Tensor) -> None:
    """The twin of `follow`, on any device, with the tokens int32 [..] of the last record."""
    followers = (rows.follows != NONE).nonzero()[:, 0]  # [F]
    tokens = last_tokens[rows.follows[followers].long()]
    places = rows.query_starts[followers].long()
    ended = (tokens < 0) | (rows.stop_ids[followers] == tokens[:, None]).any(dim=1)
    rows.token_ids[places] = torch.where(ended, 0, tokens).long()
    rows.slots[places[ended]] = -1
    rows.context_lens[followers[ended]] = 0
    rows.status[followers[ended]] = EMPTY
