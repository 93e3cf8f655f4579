"""The end of a decode step on the device: every row takes its token, moves on by one, or ends. Knows no sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .dtypes import KERNELS_BUILT, check_one_device, stream_of
from .sampler import PARAMS_BYTES, POSITION_OFFSET

if KERNELS_BUILT:
    from .. import _kernels
if TYPE_CHECKING:
    from .._kernels import StepLoop

# Token ids at which a row ends on the device. A row that has more leaves the rest to the host.
NUM_STOP_IDS = 8
LIVE, EMPTY = 1, 0
# What a record says in place of a token.
NOT_FINITE, NO_TOKEN = -1, -2


@dataclass(frozen=True, slots=True)
class CommitRows:
    """What R rows are on the device, a column each; row r computes token r of the step. All contiguous, on one device.

    Raises ValueError, naming the column, if a dtype, a shape or a device does not fit.
    """

    token_ids: Tensor  # int64 [T], T >= R, as the next two: the token that a step computes,
    positions: Tensor  # where it stands,
    slots: Tensor  # and where its K and V go: block * S + offset, -1: nowhere
    context_lens: Tensor  # int32 [R], that token included; 0 of an empty row
    block_tables: Tensor  # int32 [R, W], W >= 1
    params: Tensor  # uint8 [R, PARAMS_BYTES], by which the token is sampled
    status: Tensor  # int32 [R]: LIVE or EMPTY
    remaining: Tensor  # int32 [R], tokens that the row may still get; at least 1 if it is live
    stop_ids: Tensor  # int32 [R, NUM_STOP_IDS], filled up with -1

    def __post_init__(self) -> None:
        num_rows, width = len(self.status), max(1, self.block_tables.shape[-1])
        for name, (dtype, row_shape) in _COLUMNS.items():
            column: Tensor = getattr(self, name)
            length = max(num_rows, len(column)) if name in _OF_TOKENS else num_rows
            shape = (length, *(width if size is None else size for size in row_shape))
            if column.dtype is not dtype or column.shape != shape or not column.is_contiguous():
                raise ValueError(f"{name}: {column.dtype} {list(column.shape)} does not fit {num_rows} rows")
        check_one_device(**{name: getattr(self, name) for name in _COLUMNS})


# Dtype and the shape of a row; None: the table's width.
_COLUMNS: dict[str, tuple[torch.dtype, tuple[int | None, ...]]] = {
    "token_ids": (torch.int64, ()),
    "positions": (torch.int64, ()),
    "slots": (torch.int64, ()),
    "context_lens": (torch.int32, ()),
    "block_tables": (torch.int32, (None,)),
    "params": (torch.uint8, (PARAMS_BYTES,)),
    "status": (torch.int32, ()),
    "remaining": (torch.int32, ()),
    "stop_ids": (torch.int32, (NUM_STOP_IDS,)),
}
_OF_TOKENS = ("token_ids", "positions", "slots")


def commit(sampled: Tensor, rows: CommitRows, block_size: int, loop: StepLoop) -> None:
    """Advances `rows` by the tokens `sampled` [R] int64 and leaves the step's record with `loop`; for captured graphs.

    A live row gets its token; -1 is none, its logits were not finite. It ends there, at a stop id, or with the last of
    its remaining tokens, and is empty then. Else the next step computes that token, one position further on. The record
    has the token of each row, NOT_FINITE, or NO_TOKEN of a row that was empty before. Raises ValueError if shapes or
    dtypes do not fit, or the rows are more than the loop's records have room for.
    """
    _check(sampled, rows, block_size)
    _kernels.commit_step(
        sampled.data_ptr(), len(sampled), rows.token_ids.data_ptr(), rows.positions.data_ptr(), rows.slots.data_ptr(),
        rows.context_lens.data_ptr(), rows.block_tables.data_ptr(), rows.block_tables.shape[1], block_size,
        rows.params.data_ptr(), rows.status.data_ptr(), rows.remaining.data_ptr(), rows.stop_ids.data_ptr(), loop,
        stream_of(sampled),
    )  # fmt: skip


def commit_reference(sampled: Tensor, rows: CommitRows, block_size: int) -> Tensor:
    """The twin of `commit`, on any device: advances `rows` and returns the tokens [R] int32 of the record."""
    _check(sampled, rows, block_size)
    num_rows, width = rows.block_tables.shape
    token_ids, positions, slots = (column[:num_rows] for column in (rows.token_ids, rows.positions, rows.slots))
    live = rows.status == LIVE  # [R]
    rows.remaining.sub_(live.int())
    stops = (rows.stop_ids == sampled[:, None]).any(dim=1)
    goes_on = live & (sampled >= 0) & ~stops & (rows.remaining > 0)  # [R]

    token_ids.copy_(torch.where(goes_on, sampled, token_ids))
    positions.add_(goes_on)
    rows.params.view(torch.int64)[:, POSITION_OFFSET // 8].add_(goes_on)
    column = (positions // block_size).clamp(max=width - 1)  # [R]
    blocks = rows.block_tables.gather(1, column[:, None])[:, 0].long()
    has_block = goes_on & (positions < width * block_size)
    slots.copy_(torch.where(has_block, blocks * block_size + positions % block_size, -1))
    rows.context_lens.copy_(torch.where(goes_on, rows.context_lens + 1, 0))
    rows.status.copy_(torch.where(goes_on, LIVE, EMPTY))
    return torch.where(live, sampled.clamp(min=NOT_FINITE), NO_TOKEN).int()


def _check(sampled: Tensor, rows: CommitRows, block_size: int) -> None:
    if sampled.dtype is not torch.int64 or sampled.shape != rows.status.shape or not sampled.is_contiguous():
        problem = f"{sampled.dtype} {list(sampled.shape)} does not fit {len(rows.status)} rows"
        raise ValueError(f"sampled: {problem}")
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, is {block_size}")
    check_one_device(sampled=sampled, rows=rows.status)
