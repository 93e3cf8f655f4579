"""What waits in one pool: a line for each tenant of each class, and what each of them has been served.

A sequence that comes back (preempted, worker lost) takes its old place, ahead of all newcomers of its line. Which line
is next is said in fair_order.py; bounds are admission's business.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .fairness import Share, level
from .lifecycle import State
from .sequence import Request, Sequence
from .traffic_class import TrafficClass

# Tenants of whom nothing waits that a class remembers at least. Beyond, those are forgotten who would begin anew
# where they are.
TENANTS_REMEMBERED = 64
# Seconds after a request in which its tenant is likely to come again.
LATELY_SECONDS = 10.0


class Waiting(NamedTuple):
    """How much waits: requests of which something does, sequences with those to be forked, tokens to compute."""

    requests: int
    sequences: int
    tokens: int


NOBODY = Waiting(0, 0, 0)


def place_in_line(sequence: Sequence) -> tuple[bool, tuple[float, int]]:
    """Smaller is served earlier, of one tenant and class."""
    return not sequence.placements, sequence.urgency


@dataclass(slots=True, eq=False)
class Line:
    """One tenant of one class. Forks are not listed: they go where their leader goes."""

    share: Share
    sequences: list[Sequence] = field(default_factory=list)
    # Of those listed and of their forks, which share the tokens of their leader.
    num_sequences: int = 0
    num_tokens: int = 0
    # When the last of its requests arrived.
    asked_at: float = -math.inf

    def __contains__(self, sequence: Sequence) -> bool:
        place = self._place(place_in_line(sequence))
        return place < len(self.sequences) and self.sequences[place] is sequence

    def ahead_of(self, urgency: tuple[float, int]) -> tuple[int, int]:
        """Sequences and tokens that a newcomer of that urgency finds ahead. Takes time for each of them where it is
        not the last."""
        place = self._place((True, urgency))
        if place == len(self.sequences):
            return self.num_sequences, self.num_tokens
        ahead = self.sequences[:place]
        return sum(len(each.group) for each in ahead), sum(len(each.token_ids) for each in ahead)

    def add(self, sequence: Sequence) -> int:
        """Puts it in its place; returns how many are ahead of it."""
        place = self._place(place_in_line(sequence))
        self.sequences.insert(place, sequence)
        self.num_sequences += len(sequence.group)
        self.num_tokens += len(sequence.token_ids)
        return place

    def remove(self, sequence: Sequence) -> None:
        """Takes it out. It must be there."""
        place = self._place(place_in_line(sequence))
        assert self.sequences[place] is sequence
        del self.sequences[place]
        self.num_sequences -= len(sequence.group)
        self.num_tokens -= len(sequence.token_ids)

    def _place(self, key: tuple[bool, tuple[float, int]]) -> int:
        # A new one nearly always goes to the end, and the next one to start nearly always leaves from the front.
        if not self.sequences or place_in_line(self.sequences[-1]) < key:
            return len(self.sequences)
        if place_in_line(self.sequences[0]) >= key:
            return 0
        return bisect_left(self.sequences, key, key=place_in_line)


@dataclass(slots=True, eq=False)
class ClassQueue:
    """One class: the lines of its tenants by name, those in which somebody waits, and the others."""

    traffic_class: TrafficClass
    share: Share
    lines: dict[str, Line] = field(default_factory=dict)
    waiting: dict[str, Line] = field(default_factory=dict)
    empty: dict[str, Line] = field(default_factory=dict)
    # How many sequences of each request are listed: outputs that had to give way come back one by one.
    requests: dict[Request, int] = field(default_factory=dict)
    # Of all lines.
    num_sequences: int = 0
    num_tokens: int = 0
    # Of the tenant of whom something waited last.
    last: Share | None = None
    # Tokens that are owed at most to a tenant who has asked for less than the others got.
    owed: float = 0.0

    def line(self, tenant: str, weight: float) -> Line:
        """The tenant's line. One that is not known begins as one that comes back."""
        line = self.lines.get(tenant)
        if line is None:
            if len(self.lines) > TENANTS_REMEMBERED + 2 * len(self.waiting):
                self._forget()
            line = self.lines[tenant] = self.empty[tenant] = Line(Share(weight))
            self.come_back(line)
        return line

    def come_back(self, line: Line) -> None:
        """Something of its tenant is going to wait."""
        line.share.come_back(self.level(), self.owed)

    def level(self) -> float:
        """Where the tenants are of whom something waits."""
        return level((line.share for line in self.waiting.values()), self.last)

    def awaits(self, now: float) -> bool:
        """Whether a tenant of whom nothing waits is likely to come, and would be owed something."""
        if not self.owed:
            return False
        level, since = self.level(), now - LATELY_SECONDS
        return any(line.asked_at > since and line.share.served < level for line in self.empty.values())

    @property
    def counts(self) -> Waiting:
        return Waiting(len(self.requests), self.num_sequences, self.num_tokens)

    def _forget(self) -> None:
        """Those who ask again begin by what is owed before the level, as if they had not been forgotten."""
        level, owed = self.level(), self.owed
        self.lines = {
            tenant: line
            for tenant, line in self.lines.items()
            if line.sequences
            or line.share.ahead
            or line.share.served > level - owed / line.share.weight
            or line.share is self.last
        }
        self.empty = {tenant: line for tenant, line in self.empty.items() if tenant in self.lines}


@dataclass(slots=True, eq=False)
class WaitingQueue:
    """The sequences of a pool in state QUEUED."""

    classes: dict[str, ClassQueue] = field(default_factory=dict)
    # Of those listed and of their forks.
    num_sequences: int = 0
    num_tokens: int = 0
    # Of the class of which something waited last.
    last: Share | None = None
    # As of its classes.
    owed: float = 0.0
    _length: int = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Sequence]:
        """All of them, line by line."""
        return (each for queue in self.classes.values() for line in queue.waiting.values() for each in line.sequences)

    def __contains__(self, sequence: Sequence) -> bool:
        queue = self.classes.get(sequence.request.traffic_class.name)
        line = None if queue is None else queue.waiting.get(sequence.request.tenant.tenant)
        return line is not None and sequence in line

    def set_owed(self, tokens: float) -> None:
        """So much is owed to a tenant at most."""
        self.owed = tokens
        for queue in self.classes.values():
            queue.owed = tokens

    @property
    def num_requests(self) -> int:
        """Requests of which something waits."""
        return sum(len(queue.requests) for queue in self.classes.values())

    @property
    def longest_promise(self) -> float:
        """Of the classes that it has seen: seconds to the first token; 0 if none promises any."""
        targets = [queue.traffic_class.ttft for queue in self.classes.values()]
        return max((target.seconds for target in targets if target is not None), default=0.0)

    @property
    def num_promised(self) -> int:
        """Sequences of classes that promise a first token."""
        return sum(queue.num_sequences for queue in self.classes.values() if queue.traffic_class.ttft is not None)

    def count(self, traffic_class: str) -> Waiting:
        """What waits of a class."""
        queue = self.classes.get(traffic_class)
        return NOBODY if queue is None else queue.counts

    def add(self, sequence: Sequence) -> int:
        """Puts it in its place; returns how many of its tenant and class are ahead of it."""
        request = sequence.request
        queue = self._queue(request.traffic_class)
        line = queue.line(request.tenant.tenant, request.tenant.weight)
        if not sequence.placements:
            # One that comes back may know an older plan than those that came meanwhile.
            line.share.weight = request.tenant.weight
            line.asked_at = request.arrived_at
        if not line.sequences:
            if not queue.waiting:
                queue.share.come_back(self.level(), 0.0)
            queue.come_back(line)
            queue.waiting[request.tenant.tenant] = line
            del queue.empty[request.tenant.tenant]
        place = line.add(sequence)
        queue.requests[request] = queue.requests.get(request, 0) + 1
        self._count(queue, sequence, 1)
        return place

    def remove(self, sequence: Sequence) -> None:
        """Takes it out. It must be there."""
        request = sequence.request
        queue = self.classes[request.traffic_class.name]
        line = queue.waiting[request.tenant.tenant]
        line.remove(sequence)
        if not line.sequences:
            del queue.waiting[request.tenant.tenant]
            queue.empty[request.tenant.tenant] = line
            queue.last = line.share
            if not queue.waiting:
                self.last = queue.share
        left = queue.requests.pop(request) - 1
        if left:
            queue.requests[request] = left
        self._count(queue, sequence, -1)

    def start(self, sequence: Sequence) -> None:
        """Takes out one that goes to a worker, and charges its prompt but for what a prefix cache is believed to have.
        Once: what is computed again was taken from it."""
        self.remove(sequence)
        if sequence.placements:
            return
        sequence.uncharged_prompt = min(sequence.cached_ahead, sequence.prompt_length)
        sequence.prompt_weight = self.share(sequence).weight
        self._charge_prompt(sequence, sequence.prompt_length - sequence.uncharged_prompt)
        self._set_ahead(sequence, sequence.prompt_length - sequence.uncharged_prompt)
        for each in sequence.group:
            each.charged_length = sequence.prompt_length

    def note_prefill(self, sequence: Sequence, cached: int, computed: int) -> None:
        """Its first prefill has come so far. Charges what a prefix cache did not have of its prompt, or gives back what
        it had."""
        if cached != sequence.uncharged_prompt:
            self._charge_prompt(sequence, sequence.uncharged_prompt - cached)
            sequence.uncharged_prompt = cached
        self._set_ahead(sequence, max(0, sequence.prompt_length - max(cached, computed)))

    def charge_tokens(self, sequence: Sequence) -> None:
        """Charges what was generated since the time before."""
        tokens = len(sequence.token_ids) - sequence.charged_length
        if tokens:
            self._charge(sequence, tokens, self.share(sequence).weight)
            sequence.charged_length += tokens

    def settle(self, sequence: Sequence) -> None:
        """It leaves its worker: charges what it got there. What is not computed of its prompt is not ahead any more; it
        is given back if it never will be."""
        self.charge_tokens(sequence)
        if sequence.charged_ahead and sequence.state is State.CANCELLING:
            self._charge_prompt(sequence, -sequence.charged_ahead)
        self._set_ahead(sequence, 0)

    def share(self, sequence: Sequence) -> Share:
        """What its tenant has been served in its class."""
        tenant = sequence.request.tenant
        return self._queue(sequence.request.traffic_class).line(tenant.tenant, tenant.weight).share

    def level(self) -> float:
        """Where a class that comes back begins."""
        return level((queue.share for queue in self.classes.values() if queue.waiting), self.last)

    def _count(self, queue: ClassQueue, sequence: Sequence, times: int) -> None:
        sequences, tokens = times * len(sequence.group), times * len(sequence.token_ids)
        self._length += times
        self.num_sequences += sequences
        self.num_tokens += tokens
        queue.num_sequences += sequences
        queue.num_tokens += tokens

    def _charge_prompt(self, sequence: Sequence, tokens: int) -> None:
        """All at one weight, or a plan that changes would give back more than was taken."""
        self._charge(sequence, tokens, sequence.prompt_weight)

    def _charge(self, sequence: Sequence, tokens: int, weight: float) -> None:
        self.share(sequence).charge(tokens, weight)
        if not sequence.hurried:
            share = self._queue(sequence.request.traffic_class).share
            share.charge(tokens, share.weight)

    def _set_ahead(self, sequence: Sequence, tokens: int) -> None:
        if tokens != sequence.charged_ahead:
            self.share(sequence).put_ahead(tokens - sequence.charged_ahead, sequence.prompt_weight)
            sequence.charged_ahead = tokens

    def _queue(self, traffic_class: TrafficClass) -> ClassQueue:
        queue = self.classes.get(traffic_class.name)
        if queue is None:
            queue = ClassQueue(traffic_class, Share(traffic_class.weight), owed=self.owed)
            queue.share.come_back(self.level(), 0.0)
            self.classes[traffic_class.name] = queue
        return queue
