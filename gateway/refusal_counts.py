"""Requests that the gateway refused by itself, counted by tenant, class and reason until the scheduler is told."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

# Kinds that are told apart at a time; clients make up names of classes.
MAX_KINDS = 1024


@dataclass(frozen=True, slots=True)
class RefusalKind:
    """What is counted together. `tenant` is None for callers who are not known; `traffic_class` as the request had
    it."""

    tenant: str | None
    traffic_class: str
    reason: str


class RefusalCounts:
    """What was refused since the last `take`."""

    def __init__(self) -> None:
        self._counts: Counter[RefusalKind] = Counter()

    def note(self, kind: RefusalKind) -> None:
        """One more."""
        if kind not in self._counts and len(self._counts) >= MAX_KINDS:
            # Reasons are few, and so are tenants that there are.
            kind = RefusalKind(kind.tenant, "", kind.reason)
        self._counts[kind] += 1

    def take(self) -> dict[RefusalKind, int]:
        """All of them; from now on they are counted anew."""
        counts, self._counts = self._counts, Counter()
        return counts
