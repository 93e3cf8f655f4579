"""Where the time of one request went: its stages, in each of them what took how long, and what dominated.

Made of what the ledger has of it and what plan logs say of it; either may be missing. Knows no files and no screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tercet.ledger.row import STAGES, Outcome, Row

from .parts import Part, Parts, fit, parts_of_row, parts_of_stories
from .story import Story

# Behind the stages of a row: its client has gone, its blocks are not free yet.
RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a request, as the ledger names them, and what it consists of, the longest first."""

    name: str
    seconds: float
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """`total_s` is what the stages add up to: from its arrival at the gateway, or at the scheduler where the ledger has
    nothing of it (`at_scheduler`); to its end, or to now while it runs. `missing` says what nobody knows and how it
    could be known."""

    request_id: str
    row: Row | None
    stories: tuple[Story, ...]
    stages: tuple[Stage, ...]
    total_s: float
    at_scheduler: bool
    missing: tuple[str, ...] = ()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        if self.row is not None:
            return self.row.outcome is Outcome.OPEN
        return bool(self.stories) and self.stories[-1].ended_at is None

    @property
    def refused(self) -> str:
        """The scheduler's reason to refuse it, if it did."""
        return self.stories[-1].refused if self.stories and self.row is None else ""

    @property
    def longest(self) -> Part | None:
        """What took the longest."""
        parts = [part for stage in self.stages for part in stage.parts]
        return max(parts, key=lambda part: part.seconds, default=None)


def explain(
    request_id: str, row: Row | None, stories: Sequence[Story], now: float, missing: Sequence[str] = ()
) -> Explanation:
    """`stories` are those of one request by one scheduler after the other. `now` is in seconds since the epoch."""
    told = tuple(sorted(stories, key=lambda each: each.arrived_at))
    parts = parts_of_stories(told)
    if row is not None and any(True for _ in row.stages.items()):
        stages = _stages_of_row(row, parts)
        total_s = row.total_s if row.total_s is not None else sum(stage.seconds for stage in stages)
        return Explanation(request_id, row, told, stages, total_s, False, tuple(missing))
    stages = tuple(
        Stage(name, sum(part.seconds for part in parts[name]), _longest_first(parts[name]))
        for name in (*STAGES, RELEASE)
        if name in parts
    )
    total_s = sum(stage.seconds for stage in stages)
    if row is not None and row.outcome is Outcome.OPEN:
        # Before the scheduler had it nobody has told yet.
        total_s = max(total_s, now - row.arrived_at)
    return Explanation(request_id, row, told, stages, total_s, row is None, tuple(missing))


def _stages_of_row(row: Row, told: Parts) -> tuple[Stage, ...]:
    """What the gateway measured, and in it what the scheduler's plan log knows better."""
    of_row = parts_of_row(row)
    return tuple(
        Stage(name, seconds, _longest_first(fit(told[name], seconds) if name in told else of_row.get(name, ())))
        for name, seconds in row.stages.items()
    )


def _longest_first(parts: Sequence[Part]) -> tuple[Part, ...]:
    return tuple(sorted(parts, key=lambda part: part.seconds, reverse=True))
