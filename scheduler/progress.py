"""Whether a worker moves: told by how long it is silent that has work, never by how much waits for it. Pure.

A slow worker is none that hangs. Bounds are multiples of what a step is forecast to take, and wide: who is given up for
nothing has all of its work computed twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# Late is who is silent for so many times as long as its step was to take, and at least so many seconds; so many as long
# as nobody knows what a step takes.
LATE_STEPS = 5
LATE_SECONDS = 1.0
LATE_SECONDS_UNKNOWN = 10.0
# Hung is who is silent for so many times as long. At least `hung_s`, by default so many seconds.
HUNG_STEPS = 10
HUNG_SECONDS = 10.0
# At least so many times `hung_s` if nobody else could go on with what it has: then nothing is gained by giving up, and
# lost if it only slept.
HUNG_TIMES_ALONE = 6


class Foreseen(Enum):
    """Whose steps say what the longest step that may be running takes."""

    BY_ITSELF = "by itself"
    # Those of another worker of its kind. Its first ones may take longer, for what they find cold.
    BY_OTHERS = "by others"
    # None that was as large.
    BY_NOBODY = "by nobody"


# At least so many times `hung_s`: where nobody knows, a full chunk of a large model on a CPU takes a minute.
HUNG_TIMES = {Foreseen.BY_ITSELF: 1, Foreseen.BY_OTHERS: 3, Foreseen.BY_NOBODY: 12}


class Progress(Enum):
    """What is to be thought of a worker."""

    MOVING = "moving"
    # It may hang: what others can run is not put there, and what it has stays.
    LATE = "late"
    # Its stream is ended, and what it has goes on elsewhere.
    HUNG = "hung"


@dataclass(frozen=True, slots=True)
class Silence:
    """How long a worker could have reported and did not, and what it may be at. All in seconds.

    `seconds`: 0 if it has no work. `step_s`: what the longest step that may be running is forecast to take; None while
    there is nothing to tell by. `swap_s`: what moving KV cache between device and host may add.
    """

    seconds: float
    step_s: float | None
    foreseen: Foreseen
    swap_s: float = 0.0


def progress_of(silence: Silence, hung_s: float, *, alone: bool) -> Progress:
    """`alone`: nobody else could go on with what it has."""
    if silence.seconds > hung_after(silence, hung_s, alone=alone):
        return Progress.HUNG
    if silence.seconds > late_after(silence):
        return Progress.LATE
    return Progress.MOVING


def late_after(silence: Silence) -> float:
    """Seconds of silence."""
    return LATE_SECONDS_UNKNOWN if silence.step_s is None else max(LATE_SECONDS, LATE_STEPS * silence.step_s)


def hung_after(silence: Silence, hung_s: float, *, alone: bool) -> float:
    """Seconds of silence."""
    forecast_s = HUNG_STEPS * (silence.step_s or 0.0) + silence.swap_s
    times = max(HUNG_TIMES[silence.foreseen], HUNG_TIMES_ALONE if alone else 1)
    return max(forecast_s, times * hung_s)
