"""Moments at which something is to be done about a request, the earliest first."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from .sequence import Request

# Whether a request's moment still matters.
Wanted = Callable[[Request], bool]


@dataclass(slots=True, eq=False)
class Alarms:
    """Of one kind. Times are seconds on the scheduler's clock."""

    # With the arrival of its first sequence, so that requests are never compared.
    heap: list[tuple[float, int, Request]] = field(default_factory=list)

    def add(self, moment: float, request: Request) -> None:
        heapq.heappush(self.heap, (moment, request.sequences[0].arrival, request))

    def next(self, wanted: Wanted) -> float | None:
        """The earliest that matters; forgets those before it."""
        while self.heap and not wanted(self.heap[0][2]):
            heapq.heappop(self.heap)
        return self.heap[0][0] if self.heap else None

    def take_due(self, wanted: Wanted, now: float) -> list[Request]:
        """Those whose moment has come, each once."""
        due = []
        while self.heap and self.heap[0][0] <= now:
            request = heapq.heappop(self.heap)[2]
            if wanted(request):
                due.append(request)
        return due

    def forget(self, wanted: Wanted, most: int) -> None:
        """Moments far ahead must not keep requests in memory: leaves those that matter, if there are more than `most`
        in all."""
        if len(self.heap) > most:
            self.heap = [entry for entry in self.heap if wanted(entry[2])]
            heapq.heapify(self.heap)
