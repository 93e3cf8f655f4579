"""The scheduler's last word on a sequence, as plain values."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tercet.errors import RequestError

from .cancel import CancelTrail


class EndReason(enum.Enum):
    """How the scheduler says a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Account:
    """What a sequence, or a whole request, held and got: tokens, blocks, seconds from admission to its prefill, and of
    the time of steps."""

    cached_tokens: int
    blocks_used: int
    blocks_freed: int
    queue_s: float
    # With those that came after a cancel.
    generated_tokens: int = 0
    gpu_s: float = 0.0
    # Of gpu_s, that on workers without a GPU.
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SequenceEnd:
    """The scheduler's last word on a sequence. `stop_token_id` is set for STOP, `failure` for
    FAILED, `trail` for CANCELLED."""

    reason: EndReason
    account: Account
    stop_token_id: int | None = None
    failure: RequestError | None = None
    trail: CancelTrail | None = None
