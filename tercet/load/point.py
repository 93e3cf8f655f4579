"""One point of a sweep, or a share of it, in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from .arrivals import Kind
from .ask import Ask
from .asks import Share, asks
from .exchange import Clock, Exchange, exchange
from .host import Gpus
from .outcome import gaps_ms, row_of
from .progress import Progress
from .prompts import Source
from .record import ClientSample, Row, Sample
from .sampler import Sampler
from .sender import send_in_turn, send_when_due
from .slo import Slo
from .tally import Tally
from .target import Described, Target
from .workload import Workload


@dataclass(frozen=True, slots=True)
class Setting:
    """What all points have in common."""

    workload: Workload
    target: Target
    described: Described
    source: Source
    limits: Mapping[str, Slo]
    gpus: Gpus
    # Seconds on a clock that is the same in all processes of this host.
    now: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class PointResult:
    """Rows by index; gaps are those of all that are neither of the warm-up nor of slow readers."""

    rows: tuple[Row, ...]
    gaps: Tally
    samples: tuple[Sample, ...]


class Company(Protocol):
    """Who else sends requests of the same point."""

    @property
    def samples(self) -> Mapping[int, ClientSample]:
        """The latest of each of them."""

    async def start(self) -> float:
        """When the point begins, by `Setting.now`. Waits until all are ready."""

    async def over(self) -> None:
        """Waits until all others have read all of their answers."""


@dataclass(frozen=True, slots=True)
class Alone:
    """Nobody else."""

    now: Callable[[], float]
    samples: Mapping[int, ClientSample] = field(default_factory=dict)

    async def start(self) -> float:
        return self.now()

    async def over(self) -> None:
        """At once."""


async def run_point(
    setting: Setting,
    point: int,
    share: Share,
    company: Company,
    progress: Progress,
    on_sample: Callable[[Sample], None],
) -> PointResult:
    """Draws its requests, begins with the others, and reads all answers to the end."""
    workload = setting.workload
    how = workload.how()
    mine = asks(workload, point, setting.source, setting.described.max_model_len, share)
    # Drawing them takes time that the clock must not see; those of a closed loop may be without end.
    made = mine if how.kind is Kind.CLOSED else iter(list(mine))
    clock = _clock(setting.now, await company.start())
    await asyncio.sleep(max(0.0, -clock()))
    rows: list[Row] = []
    gaps = Tally()

    async def send(ask: Ask, due_s: float) -> None:
        seen = Exchange(ask, due_s, clock())
        progress.note_sent()
        await exchange(setting.target, seen, clock, progress.note_piece)
        note(seen)

    def note(seen: Exchange) -> None:
        between_ms = gaps_ms(seen)
        row = row_of(seen, between_ms, point, setting.limits, workload.warm_up_s)
        rows.append(row)
        if seen.sent_s is not None:
            progress.note_over(row.outcome)
        if not row.warm_up and not row.slow_reader:
            for gap in between_ms:
                gaps.add(gap)

    sampler = Sampler(point, setting.target, progress, clock, setting.gpus, company.samples, on_sample)
    async with sampler:
        if how.kind is Kind.CLOSED:
            await send_in_turn(made, send, clock, share.of(how.count), workload.duration_s, workload.patience_s)
        else:
            limit = workload.max_concurrency and max(1, share.of(workload.max_concurrency))
            for ask in await send_when_due(made, send, clock, limit, workload.patience_s):
                assert ask.due_s is not None
                note(Exchange(ask, ask.due_s, None))
        await company.over()
    return PointResult(tuple(sorted(rows, key=lambda row: row.index)), gaps, tuple(sampler.samples))


def _clock(now: Callable[[], float], start: float) -> Clock:
    return lambda: now() - start
