"""Whether a worker moves: told by the age of what it owes next, never by how much waits for it. Pure.

A slow worker is none that hangs. Bounds are multiples of what a step is forecast to take, and wide: who is given up for
nothing has all of its work computed twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# Late is who owes a report for so many times as long as its step was to take, and at least so many seconds; so many as
# long as nobody knows what a step takes.
LATE_STEPS = 5
LATE_SECONDS = 1.0
LATE_SECONDS_UNKNOWN = 10.0
# Hung is who owes it for so many times as long. At least `hung_s`, by default so many seconds; so many times that where
# nobody knows what the step takes, since it is among the first ones or larger than any before: a full chunk of a large
# model on a CPU takes a minute.
HUNG_STEPS = 10
HUNG_SECONDS = 10.0
HUNG_TIMES_UNKNOWN = 12
# At least so many times `hung_s` if nobody else could go on with what it has: then nothing is gained by giving up, and
# lost if it only slept.
HUNG_TIMES_ALONE = 6


class Progress(Enum):
    """What is to be thought of a worker."""

    MOVING = "moving"
    # It may hang: what others can run is not put there, and what it has stays.
    LATE = "late"
    # Its stream is ended, and what it has goes on elsewhere.
    HUNG = "hung"


@dataclass(frozen=True, slots=True)
class Owed:
    """What a worker owes next. All in seconds.

    `silent_s`: how long it could have reported and did not, 0 if it owes nothing. `step_s`: what the longest step that
    may be running is forecast to take, None while too few have been seen; `foreseen`: steps as large have been seen.
    `swap_s`: what moving KV cache between device and host may add.
    """

    silent_s: float
    step_s: float | None
    foreseen: bool
    swap_s: float = 0.0


def progress_of(owed: Owed, hung_s: float, *, alone: bool) -> Progress:
    """`alone`: nobody else could go on with what it has."""
    if owed.silent_s > hung_after(owed, hung_s, alone=alone):
        return Progress.HUNG
    if owed.silent_s > late_after(owed):
        return Progress.LATE
    return Progress.MOVING


def late_after(owed: Owed) -> float:
    """Seconds of silence."""
    return LATE_SECONDS_UNKNOWN if owed.step_s is None else max(LATE_SECONDS, LATE_STEPS * owed.step_s)


def hung_after(owed: Owed, hung_s: float, *, alone: bool) -> float:
    """Seconds of silence."""
    forecast_s = HUNG_STEPS * (owed.step_s or 0.0) + owed.swap_s
    least = HUNG_TIMES_ALONE * hung_s if alone else hung_s
    return max(forecast_s, least, 0.0 if owed.foreseen else HUNG_TIMES_UNKNOWN * hung_s)
