"""The queue of one pool: the most urgent is served first, of equals the one that came first.

A sequence that comes back (preempted, worker lost) takes its old place. Bounds are admission's business.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

from .sequence import Request, Sequence


class WaitingQueue:
    """Sequences in state QUEUED, ordered by `urgency`. Forks are not listed: they go where their leader goes."""

    _sequences: list[Sequence]
    # How many of each request are listed: outputs that had to give way come back one by one.
    _requests: dict[Request, int]
    # Of those listed and of their forks, which share the tokens of their leader.
    num_sequences: int
    num_tokens: int

    def __init__(self) -> None:
        self._sequences = []
        self._requests = {}
        self.num_sequences = self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __contains__(self, sequence: Sequence) -> bool:
        place = self._place(sequence)
        return place < len(self._sequences) and self._sequences[place] is sequence

    @property
    def num_requests(self) -> int:
        """Requests of which something waits."""
        return len(self._requests)

    def head(self, count: int) -> list[Sequence]:
        """At most `count` sequences, the next first."""
        return list(islice(self._sequences, count))

    def add(self, sequence: Sequence) -> int:
        """Puts it in its place; returns how many are ahead of it."""
        place = self._place(sequence)
        self._sequences.insert(place, sequence)
        self.num_sequences += len(sequence.group)
        self.num_tokens += len(sequence.token_ids)
        self._requests[sequence.request] = self._requests.get(sequence.request, 0) + 1
        return place

    def remove(self, sequence: Sequence) -> None:
        """Takes it out. It must be there."""
        place = self._place(sequence)
        assert self._sequences[place] is sequence
        del self._sequences[place]
        self.num_sequences -= len(sequence.group)
        self.num_tokens -= len(sequence.token_ids)
        left = self._requests.pop(sequence.request) - 1
        if left:
            self._requests[sequence.request] = left

    def _place(self, sequence: Sequence) -> int:
        # A new one nearly always goes to the end, and the next one to start nearly always leaves from the front.
        if not self._sequences or self._sequences[-1].urgency < sequence.urgency:
            return len(self._sequences)
        if self._sequences[0].urgency >= sequence.urgency:
            return 0
        return bisect_left(self._sequences, sequence.urgency, key=lambda each: each.urgency)
