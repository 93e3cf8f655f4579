"""What a cancel found, and how long it took until nothing of it was left. For the books: nothing is decided by it.

Times are seconds on the scheduler's clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from .events import CancelReason


@dataclass(slots=True, eq=False)
class CancelMark:
    """A cancel when it came: of a request, or of one sequence of it."""

    reason: CancelReason
    at: float
    # Names of the states of what it is about, by output index.
    states: tuple[str, ...]
    # What it had had until then of the time of steps, in microseconds.
    gpu_us: float
    # When its worker was told, the last one of several; None: nobody had to be.
    released_at: float | None = None


@dataclass(frozen=True, slots=True)
class CancelTrail:
    """A cancel that has taken effect. `release_s` and `freed_s` count from its arrival: until its worker was told, None
    if nobody had to be, and until the last block was free."""

    reason: CancelReason
    states: tuple[str, ...]
    release_s: float | None
    freed_s: float
    # Time of steps that worked for it after it came, in microseconds.
    late_gpu_us: int


def trail_of(mark: CancelMark, gpu_us: float, now: float) -> CancelTrail:
    """Of a cancel of which nothing is left; `gpu_us` is what its sequences have had of the time of steps in all."""
    return CancelTrail(
        reason=mark.reason,
        states=mark.states,
        release_s=None if mark.released_at is None else mark.released_at - mark.at,
        freed_s=now - mark.at,
        late_gpu_us=max(0, round(gpu_us - mark.gpu_us)),
    )
