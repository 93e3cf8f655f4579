"""Where a request's time goes at the gateway: when each stage began, and in the end how long each took.

Knows no calls.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from tercet.ledger.row import StageTimes


class Stage(enum.Enum):
    """What a request goes through until it waits for its first token. What comes then its tokens say."""

    CHECKS = "checks"
    TOKENIZE = "tokenize"
    PREPARE = "prepare"
    ADMISSION = "admission"
    WAITING = "waiting"


# To go through the members of an Enum takes ten times as long.
_STAGES = tuple(Stage)


class StageClock:
    """When the stages of one request began, in seconds on `clock`. It is in CHECKS from its arrival on."""

    __slots__ = ("_began", "_clock")

    def __init__(self, clock: Callable[[], float], arrived_at: float) -> None:
        self._clock = clock
        self._began = {Stage.CHECKS: arrived_at}

    def begin(self, stage: Stage) -> None:
        """The stage before is over."""
        self._began[stage] = self._clock()

    def began_at(self, stage: Stage) -> float | None:
        """None: it has not come there."""
        return self._began.get(stage)


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """When the tokens of a request came, on the gateway's clock; `paused_s` of the seconds between them its client was
    far behind. `complete`: no others were to come. `behind`: its client was, at the end."""

    first_at: float
    last_at: float
    paused_s: float
    complete: bool
    behind: bool


def stage_times(clock: StageClock, ended_at: float, queue_s: float | None, tokens: TokenTimes | None) -> StageTimes:
    """How long each stage took; they add up to the time from arrival to `ended_at`. `queue_s`: what the scheduler says
    of the wait in its queue; where it says nothing, all of the wait for the first token was there. `tokens`: None if
    there were none."""
    began = [(stage, at) for stage in _STAGES if (at := clock.began_at(stage)) is not None]
    ends = [*(at for _, at in began[1:]), ended_at if tokens is None else min(tokens.first_at, ended_at)]
    seconds = {f"{stage.value}_s": end - at for (stage, at), end in zip(began, ends, strict=True)}
    if Stage.WAITING.value + "_s" in seconds:
        wait = seconds["waiting_s"]
        seconds["waiting_s"] = wait if queue_s is None else min(queue_s, wait)
        seconds["prefill_s"] = wait - seconds["waiting_s"]
    if tokens is not None:
        first_at, last_at = min(tokens.first_at, ended_at), min(tokens.last_at, ended_at)
        paused_s = min(tokens.paused_s, last_at - first_at)
        after_s = ended_at - last_at
        seconds["decode_s"] = last_at - first_at - paused_s + (0.0 if tokens.complete or tokens.behind else after_s)
        seconds["paused_s"] = paused_s + (after_s if tokens.behind and not tokens.complete else 0.0)
        seconds["stream_s"] = after_s if tokens.complete else 0.0
    return StageTimes(**seconds)
