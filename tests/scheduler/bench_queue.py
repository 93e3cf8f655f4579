"""A queue of requests, and the order in which they are served."""

from __future__ import annotations

from typing import Any

from sequences import sequence_of

from scheduler.fair_order import FairOrder
from scheduler.sequence import Request, Sequence
from scheduler.simulator.small import submission
from scheduler.tenant import NamedPlan
from scheduler.traffic_class import CLASSES, TrafficClass
from scheduler.waiting import WaitingQueue

INTERACTIVE, RAG, BATCH = (CLASSES[name] for name in ("interactive", "rag", "batch"))


class Bench:
    """A queue that sequences are put into."""

    def __init__(self) -> None:
        self.queue = WaitingQueue()
        self._last = 0

    def add(
        self,
        tenant: str = "",
        traffic_class: TrafficClass = INTERACTIVE,
        length: int = 10,
        *,
        weight: float = 1.0,
        at: float = 0.0,
        priority: int = 0,
        **changes: Any,
    ) -> Sequence:
        self._last += 1
        asked = submission(self._last, [1] * length, priority=priority)
        plan = NamedPlan(tenant, weight=weight)
        request = Request(1, asked, at, None, tenant=plan, traffic_class=traffic_class)
        claim = traffic_class.claim(at, self._last)
        sequence = sequence_of(request, self._last, [1] * length, length + 100, claim=claim, **changes)
        self.queue.add(sequence)
        return sequence

    def order(self, now: float = 0.0, skip: frozenset[int] = frozenset()) -> list[Sequence]:
        """Who is served, one after the other, nothing else happening."""
        walk = FairOrder(self.queue, now, skip)
        found = []
        while walk.next is not None:
            found.append(walk.next)
            walk.advance()
        return found

    def start(self, now: float = 0.0) -> Sequence:
        """The next one starts."""
        walk = FairOrder(self.queue, now)
        assert walk.next is not None
        walk.next.hurried = walk.hurried
        self.queue.start(walk.next)
        return walk.next
