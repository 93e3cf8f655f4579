"""Logarithms of the probabilities that raw logits give: of chosen tokens and of the likeliest ones.

cpp/include/tercet/logprobs.h defines the result. A row's result depends on that row alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import _core
from .dtypes import KERNELS_BUILT, check_one_device, on_kernels, stream_of
from .sampler import MAX_VOCABULARY, token_weight

if KERNELS_BUILT:
    from .. import _kernels

MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of rows of logits. What there is not, or was not asked for, is NaN and id -1."""

    chosen: Tensor  # [B] float32
    top_ids: Tensor  # [B, width] int64, the likeliest first, the lowest id first among equals
    top_logprobs: Tensor  # [B, width] float32


def logprobs(logits: Tensor, chosen_ids: Tensor, num_top: Tensor, width: int) -> Logprobs:
    """Of `chosen_ids` [B] int64 and the `num_top` [B] int32 likeliest tokens of each row of `logits` [B, V] float32.

    All contiguous and on one device. `chosen_ids` below 0 are none; `num_top` is at most `width`, or -1 for a row that
    asks for nothing. A row with a NaN or +inf, or nothing but -inf, has none. Raises ValueError if shapes, dtypes or
    devices do not fit.
    """
    num_rows, vocab_size = _check(logits, chosen_ids, num_top, width)
    if not logits.is_cpu and not (on_kernels(logits) and vocab_size <= MAX_VOCABULARY):
        return logprobs_reference(logits, chosen_ids, num_top, width)
    found = Logprobs(
        torch.empty(num_rows, dtype=torch.float32, device=logits.device),
        torch.empty(num_rows, width, dtype=torch.int64, device=logits.device),
        torch.empty(num_rows, width, dtype=torch.float32, device=logits.device),
    )
    addresses = (
        logits.data_ptr(), num_rows, vocab_size, chosen_ids.data_ptr(), num_top.data_ptr(), width,
        found.chosen.data_ptr(), found.top_ids.data_ptr(), found.top_logprobs.data_ptr(),
    )  # fmt: skip
    if logits.is_cpu:
        _core.logprobs(*addresses)
    else:
        _kernels.logprobs(*addresses, stream_of(logits))
    return found


def logprobs_reference(logits: Tensor, chosen_ids: Tensor, num_top: Tensor, width: int) -> Logprobs:
    """The twin of `logprobs`, by sorting, on any device."""
    num_rows, vocab_size = _check(logits, chosen_ids, num_top, width)
    peak = logits.amax(dim=1)  # [B]
    given = (num_top >= 0) & peak.isfinite() & ~logits.isnan().any(dim=1)  # [B]
    z = torch.where(given[:, None], logits - peak[:, None], 0.0)  # [B, V]
    log_total = torch.log(token_weight(z).sum(dim=1).double() * 2.0**-40)  # [B]
    chosen = z.gather(1, chosen_ids.clamp(min=0)[:, None]).double()[:, 0] - log_total
    count = min(width, vocab_size)
    top, top_ids = (x[:, :count] for x in z.sort(dim=1, descending=True, stable=True))  # [B, count] each
    wanted = given[:, None] & (torch.arange(count, device=z.device) < num_top[:, None])  # [B, count]
    found = Logprobs(
        torch.where(given & (chosen_ids >= 0), chosen, math.nan).float(),
        torch.full((num_rows, width), -1, device=z.device),
        torch.full((num_rows, width), math.nan, device=z.device),
    )
    found.top_ids[:, :count] = torch.where(wanted, top_ids, -1)
    found.top_logprobs[:, :count] = torch.where(wanted, top.double() - log_total[:, None], math.nan).float()
    return found


def _check(logits: Tensor, chosen_ids: Tensor, num_top: Tensor, width: int) -> tuple[int, int]:
    if logits.dtype != torch.float32 or logits.ndim != 2 or not logits.is_contiguous() or logits.shape[1] == 0:
        raise ValueError(f"logits must be contiguous float32 [B, V], is {logits.dtype} {list(logits.shape)}")
    for name, column, dtype in (("chosen_ids", chosen_ids, torch.int64), ("num_top", num_top, torch.int32)):
        if column.dtype != dtype or column.shape != logits.shape[:1] or not column.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous {dtype} [{len(logits)}], is {column.dtype} {list(column.shape)}"
            )
    if not 0 <= width <= MAX_TOP_LOGPROBS:
        raise ValueError(f"width must be from 0 to {MAX_TOP_LOGPROBS}, is {width}")
    check_one_device(logits=logits, chosen_ids=chosen_ids, num_top=num_top)
    return len(logits), logits.shape[1]
