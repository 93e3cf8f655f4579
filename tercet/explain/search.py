"""Which request an id means, or the beginning of one: of what the ledger has and of what plan logs tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tercet.ledger.row import Outcome, Row

from .story import Story

# Clocks of gateway and scheduler may differ by so much, in seconds.
SLACK_S = 5.0


@dataclass(frozen=True, slots=True)
class Found:
    """One request: its row, and what each scheduler that had it says. `earlier` others had the same id before."""

    request_id: str
    tenant: str
    row: Row | None
    stories: tuple[Story, ...]
    earlier: int = 0

    @property
    def arrived_at(self) -> float:
        """In seconds since the epoch."""
        return self.row.arrived_at if self.row is not None else self.stories[0].arrived_at


def find(prefix: str, rows: Sequence[Row], stories: Sequence[Story], tenant: str | None = None) -> list[Found]:
    """The requests that it may mean, each the newest of its id and tenant, in order of their ids. One whose whole id it
    is leaves out those whose ids only begin so."""
    named = [(row.request_id, row.tenant) for row in rows] + [(story.request_id, story.tenant) for story in stories]
    there = {key for key in named if key[0].startswith(prefix) and tenant in (None, key[1])}
    exact = {key for key in there if key[0] == prefix}
    return [_newest(*key, rows, stories) for key in sorted(exact or there)]


def _newest(request_id: str, tenant: str, rows: Sequence[Row], stories: Sequence[Story]) -> Found:
    key = request_id, tenant
    mine = sorted((each for each in rows if (each.request_id, each.tenant) == key), key=lambda each: each.arrived_at)
    told = sorted((each for each in stories if (each.request_id, each.tenant) == key), key=lambda each: each.arrived_at)
    row = mine[-1] if mine else None
    of_row = [each for each in told if row is not None and _is_of(row, each)]
    if row is not None and not (told and not of_row and told[-1].arrived_at > row.arrived_at):
        return Found(request_id, tenant, row, tuple(of_row), len(mine) - 1)
    # Nobody has written it down: it is refused, or there is no ledger.
    first = next((index for index in reversed(range(len(told))) if not told[index].taken_over), 0)
    return Found(request_id, tenant, None, tuple(told[first:]), len(mine) + first)


def _is_of(row: Row, story: Story) -> bool:
    """Whether they are of the same request."""
    ended_at = row.arrived_at + (row.total_s or 0.0) if row.outcome is not Outcome.OPEN else float("inf")
    return row.arrived_at - SLACK_S <= story.arrived_at <= ended_at + SLACK_S
