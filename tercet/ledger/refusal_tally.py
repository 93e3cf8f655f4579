"""Refusals of a gateway that are still to be written, or may still grow: how many of each kind, and where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .row import RefusalKey, Refusals

# Beyond so many kinds, refusals are only told in the log.
MAX_KEYS = 10_000


@dataclass(slots=True)
class _Counted:
    """Refusals of one key; `written` of them are in the database, `journaled` in the journal."""

    request_id: str
    count: int = 0
    written: int = 0
    journaled: int = 0


class RefusalTally:
    """Counts by key. Not for several threads at once."""

    def __init__(self) -> None:
        self._counted: dict[RefusalKey, _Counted] = {}
        # Of the newest key.
        self.second = 0
        # Those there was no room for, since somebody last took note of it.
        self.uncounted = 0

    def __len__(self) -> int:
        return len(self._counted)

    def count(self, key: RefusalKey, request_id: str) -> None:
        """One more. Seconds never go back."""
        self.second = key.second
        counted = self._counted.get(key)
        if counted is None:
            if len(self._counted) >= MAX_KEYS:
                self.uncounted += 1
                return
            counted = self._counted[key] = _Counted(request_id)
        counted.count += 1

    def unwritten(self) -> list[Refusals]:
        """Those that the database does not have, or not all of."""
        return [
            Refusals(key, each.count, each.request_id)
            for key, each in self._counted.items()
            if each.count > each.written
        ]

    def settle(self, written: Sequence[Refusals]) -> None:
        """These are in the database. Those of seconds that are over are done with."""
        for each in written:
            self._counted[each.key].written = each.count
        for key, counted in list(self._counted.items()):
            if key.second < self.second and counted.count == counted.written:
                del self._counted[key]

    def journal(self, append: Callable[[Refusals], object]) -> None:
        """Gives `append` what neither journal nor database have."""
        for key, each in self._counted.items():
            if each.count > max(each.written, each.journaled):
                append(Refusals(key, each.count, each.request_id))
                each.journaled = each.count
