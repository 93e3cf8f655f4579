"""What the ledger keeps of a request, and of those that were refused. Knows no database."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, fields


class Outcome(enum.Enum):
    """How a request ended. Values are the words in the ledger and in logs."""

    OPEN = "open"  # it has not ended
    COMPLETED = "completed"
    REFUSED = "refused"  # nothing was done for it
    CANCELLED = "cancelled"  # nobody wanted it any more
    EXPIRED = "expired"  # its deadline passed, or the longest wait of its class
    FAILED = "failed"
    LOST = "lost"  # with the process that had it


# Why a row is closed whose gateway did not come back.
GATEWAY_LOST = "GATEWAY_LOST"


@dataclass(frozen=True, slots=True)
class Cancellation:
    """A cancel of a request, or of one of its outputs, and what became of it. None is what nobody knows, or what did
    not happen; durations are seconds."""

    # None: the whole request.
    output_index: int | None
    # Who or what cancelled.
    origin: str
    # When the gateway saw that, in seconds since the epoch.
    cancelled_at: float
    # Where the sequences were when it came to the scheduler, by output index.
    states: tuple[str, ...] = ()
    # On the scheduler's clock, from there until the worker was told, and until the last block was free.
    release_s: float | None = None
    freed_s: float | None = None
    # On the gateway's clock, from `cancelled_at` until it knew that.
    done_s: float | None = None
    # That went back to the pool.
    blocks_freed: int | None = None
    # Generated and not delivered, of the whole request.
    wasted_tokens: int | None = None
    # Time of steps that were spent on it after the cancel had come to the scheduler.
    wasted_gpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A cancel, and whose request it was of."""

    request_id: str
    tenant: str
    traffic_class: str
    cancellation: Cancellation


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Where the time of a request went: seconds on the gateway's clock, one after the other, so that those it came to
    add up to `total_s`. None: it never came there, or it has not ended."""

    # Whether anything can serve it; template and tokenizer; bad words, grammar, quota of a call of many.
    checks_s: float | None = None
    tokenize_s: float | None = None
    prepare_s: float | None = None
    # Until the scheduler had accepted it; in the scheduler's queue; until its first token.
    admission_s: float | None = None
    waiting_s: float | None = None
    prefill_s: float | None = None
    # Until its last token, without the time in which its client was far behind; that; and until all was handed over.
    decode_s: float | None = None
    paused_s: float | None = None
    stream_s: float | None = None

    def items(self) -> Iterator[tuple[str, float]]:
        """Name and seconds of the stages that it came to, in order."""
        for name in STAGES:
            seconds = getattr(self, f"{name}_s")
            if seconds is not None:
                yield name, seconds


# In the order in which a request goes through them.
STAGES = tuple(item.name.removesuffix("_s") for item in fields(StageTimes))
NO_STAGES = StageTimes()


@dataclass(frozen=True, slots=True)
class Row:
    """A request, as it stands in the ledger until a later row of the same `number` takes its place. Numbers are a
    gateway's own; times are seconds, `arrived_at` those since the epoch. None is what nobody knows."""

    number: int
    request_id: str
    tenant: str
    traffic_class: str
    model: str
    revision: str
    outputs: int
    arrived_at: float
    outcome: Outcome = Outcome.OPEN
    # Reason of the error, of the cancel, or of the outputs' ends.
    reason: str = ""
    prompt_tokens: int = 0
    # Of the prompt, found in the prefix cache.
    cached_tokens: int | None = None
    # generated = delivered + wasted. Delivered is what was handed to the client's connection.
    generated_tokens: int | None = None
    delivered_tokens: int | None = None
    wasted_tokens: int | None = None
    # From admission to the start of prefill; from arrival to the first token; from there to the last one, by token; the
    # longest time between two tokens of one output; from arrival to the end.
    queue_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    largest_gap_s: float | None = None
    total_s: float | None = None
    # Its part of the time of the steps it took part in, whatever became of it; of that, on workers without a GPU; and
    # what it costs.
    gpu_s: float | None = None
    cpu_s: float | None = None
    cost: float | None = None
    # What became of the promise of its class: see `slo_of`.
    slo: str | None = None
    # How often another scheduler took it over.
    takeovers: int | None = None
    stages: StageTimes = NO_STAGES
    # Of its last row.
    cancellations: tuple[Cancellation, ...] = ()


@dataclass(frozen=True, slots=True)
class RefusalKey:
    """Refusals that are counted together: those of one second since the epoch, alike in all of this."""

    second: int
    tenant: str
    traffic_class: str
    model: str
    reason: str


@dataclass(frozen=True, slots=True)
class Refusals:
    """How many there were; `request_id` is that of the first."""

    key: RefusalKey
    count: int
    request_id: str


SLO_MET = "met"
SLO_UNSERVED = "unserved"


@dataclass(frozen=True, slots=True)
class Targets:
    """What a class promises, in seconds: until the first token, and as the mean from one token to the next. None:
    nothing."""

    traffic_class: str
    ttft_s: float | None = None
    gap_s: float | None = None


def slo_of(outcome: Outcome, targets: Targets, ttft_s: float | None, tpot_s: float | None) -> str | None:
    """Which part of the promise was broken, "ttft", "gap" or "ttft+gap"; SLO_UNSERVED if none was but the request was
    not served to its end; else SLO_MET. None for what nobody wanted any more, and for what never ran."""
    if outcome in (Outcome.OPEN, Outcome.REFUSED, Outcome.CANCELLED):
        return None
    broken = []
    if targets.ttft_s is not None and (ttft_s is None or ttft_s > targets.ttft_s):
        broken.append("ttft")
    if targets.gap_s is not None and tpot_s is not None and tpot_s > targets.gap_s:
        broken.append("gap")
    if broken:
        return "+".join(broken)
    return SLO_MET if outcome is Outcome.COMPLETED else SLO_UNSERVED
