"""In which order a queue is served: between classes by promises and weights, in a class by what its tenants have had.

A dry run: it charges copies of the counters, so that whoever looks far ahead sees the same order as whoever looks at
the next one only. Takes time for each tenant that waits, and for each sequence that is looked at.
"""

from __future__ import annotations

from collections.abc import Container
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from .fairness import Share
from .sequence import Request, Sequence
from .tenant import NamedPlan
from .traffic_class import TrafficClass
from .waiting import ClassQueue, Line, WaitingQueue

# A promise is at stake from this part of its time on.
DUE = 0.5


def due_after(traffic_class: TrafficClass) -> float:
    """Seconds of waiting after which one that waits is due."""
    return traffic_class.patience_s if traffic_class.ttft is None else DUE * traffic_class.ttft.seconds


def due_at(request: Request) -> float:
    """When it is due."""
    return request.arrived_at + (due_after(request.traffic_class) if request.due_s is None else request.due_s)


def due(queue: ClassQueue, now: float) -> bool:
    """Whether somebody first in his line is due."""
    return any(now >= due_at(line.sequences[0].request) for line in queue.waiting.values())


def aged(request: Request, now: float) -> bool:
    """Whether it is due not by a promise, but by having waited for its class's patience."""
    traffic_class = request.traffic_class
    return traffic_class.ttft is None and now >= request.arrived_at + traffic_class.patience_s


class _Class:
    """A class, its tenants as a heap: the least served first, of equals the one whose next came first."""

    __slots__ = (
        "_heap",
        "_now",
        "_num_due",
        "_promise",
        "_skip",
        "arrived_at",
        "awaited",
        "name",
        "next",
        "promised",
        "rank",
        "served",
        "weight",
    )

    def __init__(self, queue: ClassQueue, now: float, skip: Container[int]) -> None:
        traffic_class = queue.traffic_class
        self.name = traffic_class.name
        self.awaited = queue.awaits(now)
        self._skip = skip
        self._now = now
        self._promise = 0.0 if traffic_class.ttft is None else traffic_class.ttft.seconds
        self.promised = traffic_class.ttft is not None
        self.rank = traffic_class.rank
        self.weight = queue.share.weight
        self.served = queue.share.served
        lines = queue.waiting.values()
        firsts = [(line, self._first(line, 0)) for line in lines] if skip else [(line, 0) for line in lines]
        self._heap = [
            (line.share.served, line.sequences[place].arrival, line, place)
            for line, place in firsts
            if place < len(line.sequences)
        ]
        # Where nothing is promised: of how many tenants the next one is due.
        self._num_due = 0
        if not self.promised:
            self._num_due = sum(self._is_due(line.sequences[place]) for _, _, line, place in self._heap)
        heapify(self._heap)
        self._look()

    @property
    def due(self) -> bool:
        """Its promise to the next one is at stake; or, where it promises nothing, somebody first in his line has waited
        for its patience, though another tenant may have the turn that it gets for that."""
        if not self.promised:
            return self._num_due > 0
        return self.next is not None and self._is_due(self.next)

    @property
    def tenant_served(self) -> float:
        return self._heap[0][0]

    @property
    def owed_turn(self) -> bool:
        served, _, line, _ = self._heap[0]
        return served < line.share.level

    @property
    def moment(self) -> float:
        """When the next one's promise is broken."""
        return self.arrived_at + self._promise

    def advance(self, tokens: int) -> None:
        served, _, line, place = self._heap[0]
        self._num_due -= self._is_due(line.sequences[place])
        place = self._first(line, place + 1)
        if place < len(line.sequences):
            served += tokens / line.share.weight
            self._num_due += self._is_due(line.sequences[place])
            heapreplace(self._heap, (served, line.sequences[place].arrival, line, place))
        else:
            heappop(self._heap)
        self._look()

    def pass_tenant(self) -> None:
        _, _, line, place = heappop(self._heap)
        self._num_due -= self._is_due(line.sequences[place])
        self._look()

    def _is_due(self, sequence: Sequence) -> bool:
        return self._now >= due_at(sequence.request)

    def _first(self, line: Line, place: int) -> int:
        """From that place on, the first that is not skipped."""
        sequences = line.sequences
        if self._skip:
            while place < len(sequences) and sequences[place].sequence_id in self._skip:
                place += 1
        return place

    def _look(self) -> None:
        self.next: Sequence | None = None
        if self._heap:
            _, _, line, place = self._heap[0]
            self.next = line.sequences[place]
            self.arrived_at = self.next.request.arrived_at


class FairOrder:
    """Walks through a queue. `next` is whose turn it is, None at the end; `due`: its promise is at stake, or it has
    waited its class's patience; `hurried`: for that it is ahead of the turn of its class.

    The queue must not change meanwhile.
    """

    next: Sequence | None
    due: bool
    hurried: bool
    # What its tenant has been served in its class by then.
    served: float
    # This is owed to its tenant, who asked for less than the others got.
    owed_turn: bool
    # It is not, and one to whom something is owed was before it, or is likely to come.
    reserved: bool
    # Names of classes in which one was seen, or is likely to come.
    awaited: set[str]

    def __init__(self, queue: WaitingQueue, now: float, skip: Container[int] = (), *, scarce: bool = False) -> None:
        """`skip` are ids of sequences that nothing can be done for. `scarce`: there are no more places than for
        those that were promised something; then these are first, lest others soon have to make room for them."""
        self._scarce = scarce
        classes = [_Class(each, now, skip) for each in queue.classes.values() if each.waiting]
        self._classes = [each for each in classes if each.next is not None]
        self.awaited = {each.name for each in self._classes if each.awaited}
        self._choose()

    def advance(self, tokens: int | None = None) -> None:
        """Its turn is over, whether it went or has to wait; `tokens` of it are charged, all of its first prefill if
        that is not known."""
        assert self.next is not None
        if self.next.placements:
            tokens = 0
        elif tokens is None:
            tokens = len(self.next.token_ids)
        if not self.hurried:
            self._class.served += tokens / self._class.weight
        self._class.advance(tokens)
        self._choose()

    def pass_tenant(self) -> None:
        """Nothing more of its tenant in its class."""
        self._class.pass_tenant()
        self._choose()

    def pass_class(self) -> None:
        """Nothing more of its class."""
        self._class.next = None
        self._choose()

    def _choose(self) -> None:
        self.next = None
        if self._classes and any(each.next is None for each in self._classes):
            self._classes = [each for each in self._classes if each.next is not None]
        if not self._classes:
            return
        classes = self._classes
        chosen = rival = classes[0] if len(classes) == 1 else min(classes, key=_by_weight)
        due = [each for each in classes if each.due]
        urgent = [each for each in (classes if self._scarce else due) if each.promised]
        if urgent:
            chosen = min(urgent, key=lambda each: (each not in due, each.moment if each in due else 0.0, each.rank))
            patient = [each for each in due if not each.promised]
            if patient:
                # It gets its share even where promises are at stake all the time.
                rival = min(patient, key=_by_weight)
                chosen = min(chosen, rival, key=_by_weight)
        self._class = chosen
        self.next = chosen.next
        self.served = chosen.tenant_served
        self.owed_turn = chosen.owed_turn
        if self.owed_turn:
            self.awaited.add(chosen.name)
        self.reserved = chosen.name in self.awaited and not self.owed_turn
        self.due = chosen in due
        self.hurried = chosen.served > rival.served


def _by_weight(each: _Class) -> tuple[float, int]:
    return each.served, each.rank


class Ahead(NamedTuple):
    """What of its class is served before a newcomer: tokens to compute and sequences to start."""

    tokens: float
    sequences: float
    # Of these, those of its tenant.
    own_tokens: int = 0
    own_sequences: int = 0


NOTHING_AHEAD = Ahead(0.0, 0.0)


def work_ahead(
    queue: WaitingQueue, traffic_class: TrafficClass, tenant: NamedPlan, urgency: tuple[float, int]
) -> Ahead:
    """What of its class would be ahead of a newcomer that nobody is in a hurry about.

    As if tokens flowed: what is ahead of it in its own line comes first, and every other tenant is served until his
    counter is where its own will then be, or nothing is left of him. What is generated meanwhile is not looked at.
    Takes time for each tenant that waits.
    """
    of_class = queue.classes.get(traffic_class.name)
    if of_class is None:
        return NOTHING_AHEAD
    own = of_class.lines.get(tenant.tenant)
    own_sequences, own_tokens = (0, 0) if own is None else own.ahead_of(urgency)
    share = Share(tenant.weight) if own is None else own.share
    mark = share.served if own is not None and own.sequences else share.begin(of_class.level(), of_class.owed)
    mark += own_tokens / share.weight
    tokens, sequences = float(own_tokens), float(own_sequences)
    for line in of_class.waiting.values():
        if line is not own:
            part = _part(line.share, mark, line.num_tokens)
            tokens += part * line.num_tokens
            sequences += part * line.num_sequences
    return Ahead(tokens, sequences, own_tokens, own_sequences)


def _part(share: Share, mark: float, tokens: int) -> float:
    """Which part of so many tokens is served until the counter is at the mark."""
    return min(1.0, max(0.0, (mark - share.served) * share.weight / tokens))
