"""The health of a service in four names that each can be asked for. Pure; knows neither gRPC nor the services.

A name holds, or there are reasons why not: short texts that strangers may read, without addresses, files and tenants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# The process does its work; if not, starting it again helps.
LIVE = "live"
# What it is called for would be served now.
READY = "ready"
# Everything that belongs to it is there, and in order.
INTACT = "intact"
# It refuses nobody for want of room; if not, others should be asked.
HAS_ROOM = "has-room"
NAMES = (LIVE, READY, INTACT, HAS_ROOM)

# Why a name does not hold; none: it does.
Reasons = tuple[str, ...]
Conditions = Mapping[str, Reasons]

# A service looks at itself so often, and whenever it knows of a change.
LOOK_SECONDS = 1.0
# Who has refused for want of room for so long has none; a single burst may pass.
PRESSED_SECONDS = 3.0
# Refusals that are further apart have nothing to do with each other. Who refuses nobody for so long has room again.
CALM_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Pressure:
    """Refusals for want of room, of one kind: how many since the start, and when the first and the last of those were
    seen that follow each other closely. Times are seconds on one clock."""

    count: int = 0
    since: float | None = None
    last: float = 0.0

    def after(self, count: int, now: float) -> Pressure:
        """What a look finds that sees `count` refusals since the start."""
        since = None if self.since is None or now - self.last >= CALM_SECONDS else self.since
        if count == self.count:
            return Pressure(count, since, self.last)
        return Pressure(count, now if since is None else since, now)

    @property
    def high(self) -> bool:
        """Whether there was no room at the last look, and it was not a moment's matter."""
        return self.since is not None and self.last - self.since >= PRESSED_SECONDS


def look_at_room(before: Mapping[str, Pressure], counts: Mapping[str, int], now: float) -> dict[str, Pressure]:
    """The pressures by kind, after those `before`, with the refusals since the start by kind."""
    return {kind: before.get(kind, Pressure()).after(count, now) for kind, count in counts.items()}


def high(pressures: Mapping[str, Pressure]) -> Reasons:
    """The kinds for which there is no room."""
    return tuple(kind for kind, pressure in pressures.items() if pressure.high)


@dataclass(frozen=True, slots=True)
class Stillness:
    """What something that works has done so far, and for how many seconds it has stood still with something to do.

    Each look adds no more than two of the usual ones are apart: who was stopped as a whole has not hung.
    """

    count: int = -1
    still_s: float = 0.0
    looked_at: float = 0.0

    def after(self, count: int, busy: bool, now: float) -> Stillness:
        """What a look finds at `now`. Who has nothing to do does not stand still."""
        if count != self.count or not busy:
            return Stillness(count, 0.0, now)
        return Stillness(count, self.still_s + min(now - self.looked_at, 2 * LOOK_SECONDS), now)


def told(*facts: tuple[bool, str]) -> Reasons:
    """The words of those facts that are so."""
    return tuple(words for so, words in facts if so)


def passed_on(whose: str, reasons: Iterable[str]) -> Reasons:
    """Another's reasons as one's own."""
    return tuple(f"{whose}: {reason}" for reason in reasons)
