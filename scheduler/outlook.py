"""What is expected of a request when it comes: values, as they are noted on it. Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Regime(Enum):
    """What a request waits for. Forecasts of each err in their own way."""

    IDLE = "idle"  # the end of the step that runs, and its own prefill
    PREFILL = "prefill"  # prompts that are computed before its own
    PLACE = "place"  # slots or blocks that others have


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Seconds from now to the first token, in parts that follow each other."""

    regime: Regime
    # Until the step that runs is over, until it is the request's turn, and for its own steps.
    step_s: float
    queue_s: float
    prefill_s: float
    # What it would take on a worker that has nothing else to do.
    alone_s: float
    # Others make room for it: until a place is free without that. 0: nobody does.
    place_s: float = 0.0
    # It comes no sooner: all slots are taken by those whose ends are known. 0: nothing is that sure.
    soonest_s: float = 0.0

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.step_s + self.queue_s + self.prefill_s


class Kind(NamedTuple):
    """Forecasts that err alike."""

    traffic_class: str
    regime: Regime
    # Something of its own tenant waits, besides other tenants: it waits for its fair turn.
    in_line: bool
    # It takes much of what its class promises. What is far off varies less, and only of that it has to be decided.
    far: bool


@dataclass(frozen=True, slots=True)
class Outlook:
    """What was expected of a request when it came."""

    kind: Kind
    # As the model has it.
    first_token: FirstToken
    # Until the first token, as likely too high as too low: with what was learned of the model's errors.
    seconds: float
    # How likely that is within what its class promises; None if that promises nothing.
    chance: float | None
    # It was to be refused for getting none within so many seconds, and runs all the same: so it shows whether that had
    # been right. None: it was not to be refused.
    limit_s: float | None

    @property
    def to_be_refused(self) -> bool:
        """Whether it was to be refused."""
        return self.limit_s is not None
