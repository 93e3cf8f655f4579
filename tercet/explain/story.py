"""What a plan log says of one request, as plain values. Knows no core and no file.

Moments are seconds since the epoch, durations seconds.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Place(enum.Enum):
    """Where an output was."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    PAUSED = "paused"  # its client is far behind
    LEAVING = "leaving"  # told to give way, its blocks are not free yet
    CANCELLING = "cancelling"  # told to stop, its blocks are not free yet


class Cause(enum.Enum):
    """Why an output began to wait in the queue."""

    ARRIVED = "arrived"
    TAKEN_OVER = "taken over"  # from another scheduler
    GAVE_WAY = "gave way"  # for others' blocks or place
    WORKER_LOST = "worker lost"
    MOVED = "moved"  # its worker was about to stop
    READER = "reader caught up"


class Limit(enum.Enum):
    """What kept the first of the queue, and so all behind it, from starting."""

    NO_WORKER = "no worker"
    SHARE = "share of blocks"
    CLASS = "class"
    SLOTS = "slots"
    BLOCKS = "blocks"
    BUDGET = "tokens of a step"


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which an output was in one place. Of QUEUED: why that began, and for how long what held it up, the
    longest first."""

    place: Place
    began_at: float
    ended_at: float
    worker: str = ""
    cause: Cause | None = None
    limits: tuple[tuple[Limit, float], ...] = ()

    @property
    def seconds(self) -> float:
        return self.ended_at - self.began_at


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a worker: all tokens that it computed, of these those of prompts, of so many sequences, and those of
    the output that is told of."""

    ended_at: float
    seconds: float
    worker: str
    tokens: int
    prompt_tokens: int
    prompts: int
    own_tokens: int


@dataclass(frozen=True, slots=True)
class Gap:
    """The longest time between two tokens of an output, and the steps that its worker reported meanwhile, the longest
    first, at most a few. `decoding`: it was in DECODE all the while."""

    began_at: float
    ended_at: float
    decoding: bool
    steps: tuple[Step, ...]
    num_steps: int

    @property
    def seconds(self) -> float:
        return self.ended_at - self.began_at


@dataclass(frozen=True, slots=True)
class Wait:
    """From when to when nothing was missing but one thing."""

    began_at: float
    ended_at: float

    def within(self, stretch: Stretch) -> float:
        """Seconds of it in a stretch."""
        return max(0.0, min(self.ended_at, stretch.ended_at) - max(self.began_at, stretch.began_at))


@dataclass(frozen=True, slots=True)
class OutputStory:
    """One output. What is counted is counted from where the plan log begins. `grammar`: its prompt was computed but for
    the token that brings the first of the output, which has to wait for what the grammar allows."""

    index: int
    stretches: tuple[Stretch, ...]
    first_token_at: float | None
    tokens: int
    # Chunks of its prompt and tokens in them; what of it was found in a prefix cache; and tokens that were computed
    # again behind its first one.
    chunks: int
    chunk_tokens: int
    cached_tokens: int
    again_tokens: int
    # Plans sent to its worker while it ran there, their steps, and how many of them were revoked.
    plans: int
    planned_steps: int
    revoked: int
    # Of the steps that gave it a token: the middle one, and the mean.
    median_step_s: float | None
    mean_step_s: float | None
    gap: Gap | None
    preemptions: int
    swaps: int
    losses: int
    moves: int
    grammar: Wait | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """Requests of one class that started while this one waited for its first start; of these, `later` had come later.
    `mine`: it is this one's class."""

    traffic_class: str
    count: int
    later: int
    mine: bool


@dataclass(frozen=True, slots=True)
class Cancelled:
    """When a cancel came to the scheduler, why, where it found the outputs, and when the last block was free."""

    at: float
    reason: str
    states: tuple[str, ...]
    freed_at: float | None


@dataclass(frozen=True, slots=True)
class Story:
    """A request at one scheduler, from its arrival there to its end or to that of the plan log."""

    request_id: str
    tenant: str
    traffic_class: str
    model: str
    prompt_tokens: int
    arrived_at: float
    # When the plan log begins and ends; `whole`: it begins with the request's arrival or earlier.
    log_began_at: float
    log_ended_at: float
    whole: bool
    # Another scheduler had it before.
    taken_over: bool = False
    # Reason and words of a refusal, empty if it was accepted.
    refused: str = ""
    refusal: str = ""
    queue_position: int | None = None
    forecast_s: float | None = None
    outputs: tuple[OutputStory, ...] = ()
    served: tuple[Served, ...] = ()
    # Sequences on the workers that it could go to, when it came.
    running_at_arrival: int = 0
    pauses: int = 0
    paused_s: float = 0.0
    cancel: Cancelled | None = None
    # None: it runs.
    ended_at: float | None = None
    outcome: str = ""
    reason: str = ""
    # Its part of the time of steps.
    gpu_s: float = 0.0
    # Why the plan log says no more than this.
    problem: str = ""

    @property
    def until(self) -> float:
        """As far as it is told."""
        return self.log_ended_at if self.ended_at is None else self.ended_at

    @property
    def last_output(self) -> OutputStory | None:
        """The one that was there the longest: its time is the request's."""
        return max(self.outputs, key=lambda each: each.stretches[-1].ended_at if each.stretches else 0.0, default=None)
