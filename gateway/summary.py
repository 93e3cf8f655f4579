"""What a client learns at the end of its request."""

from __future__ import annotations

from dataclasses import dataclass

from .output import Finish
from .sequence_end import Account


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one request, `finishes` by output. Times are seconds since the request's arrival; queue_s
    is in `account`, which is None if the mesh did not say in time."""

    finishes: tuple[Finish, ...]
    account: Account | None
    prompt_tokens: int
    completion_tokens: int
    admission_s: float
    first_token_s: float
    total_s: float
