"""How long outputs are, and so how soon those that run will leave. Knows no requests, only lengths in tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp
from typing import NamedTuple

from .preemption import Holder

# Lengths at which bins begin: two for each doubling. The last one has no end.
EDGES = (0, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384)
# Outputs that count: when there are twice as many, all weigh half.
MEMORY_OUTPUTS = 256
# What an output is believed to do at a length that none has reached: to become as long again, and half of that.
PRIOR_STAY = 0.5

_WIDTHS = tuple(high - low for low, high in pairwise(EDGES))
_PRIORS = tuple(PRIOR_STAY * max(4, edge) for edge in EDGES)


class LeaveRate(NamedTuple):
    """How likely a running sequence leaves in a step by chance: now, where those whose ends are known do not, and once
    all that run now are gone."""

    now: float
    later: float


@dataclass(frozen=True, slots=True)
class LeaveRates:
    """How those on a worker leave, all and of each class, as it was after so many of its steps with so many there."""

    steps: int
    count: int
    all: LeaveRate
    by_class: Mapping[str, LeaveRate]
    # After how many more steps those are expected to leave whose ends are known, the first one first.
    known: tuple[int, ...] = ()
    # Those that make room where a promise is at stake, the first to go first.
    yielders: tuple[Holder, ...] = ()

    def of(self, traffic_class: str) -> LeaveRate:
        """Of one class; as all do if none of it was there then."""
        return self.by_class.get(traffic_class, self.all)

    def mixed(self, counts: Mapping[str, int]) -> LeaveRate:
        """Of so many of each class. There must be some."""
        total = sum(counts.values())
        rates = [(count / total, self.of(name)) for name, count in counts.items()]
        return LeaveRate(sum(part * each.now for part, each in rates), sum(part * each.later for part, each in rates))


class OutputLengths:
    """Of one kind of requests: how many outputs ended at which length, and how many tokens were generated there."""

    __slots__ = ("_ends", "_tokens", "_total")
    _ends: list[float]
    _tokens: list[float]
    _total: float

    def __init__(self) -> None:
        self._ends = [0.0] * len(EDGES)
        self._tokens = [0.0] * len(EDGES)
        self._total = 0.0

    def ended(self, length: int) -> None:
        """An output of `length` tokens is over, whatever the reason."""
        place = bisect_right(EDGES, length) - 1
        tokens = self._tokens
        for index in range(place):
            tokens[index] += _WIDTHS[index]
        tokens[place] += length - EDGES[place]
        self._ends[place] += 1.0
        self._total += 1.0
        if self._total >= 2 * MEMORY_OUTPUTS:
            self._total /= 2
            self._ends = [each / 2 for each in self._ends]
            self._tokens = [each / 2 for each in tokens]

    def to_go(self, length: int) -> float:
        """Tokens that one so long is expected to become more, if it may end from now on."""
        place = bisect_right(EDGES, length) - 1
        return (self._tokens[place] + _PRIORS[place]) / (self._ends[place] + 1.0)

    def leaving(self, lengths: Sequence[int], most: float, known: Sequence[int] = ()) -> LeaveRate:
        """Of running outputs that are so long now, and may become `most` tokens on average; `known` are the lengths of
        those that do not leave by chance.

        Those that run count as what they are: as long as this at least. Without that the first to end, which are
        short, would be all that is known. There must be some.
        """
        running = [0] * len(EDGES)
        tokens = list(self._tokens)
        there = [0] * len(EDGES)
        for length in lengths:
            place = bisect_right(EDGES, length) - 1
            running[place] += 1
            there[place] += 1
            tokens[place] += length - EDGES[place]
        for length in known:
            place = bisect_right(EDGES, length) - 1
            there[place] += 1
            tokens[place] += length - EDGES[place]
        beyond = count = len(lengths) + len(known)
        now = mean = 0.0
        left = 1.0
        for index, prior in enumerate(_PRIORS):
            beyond -= there[index]
            if index < len(_WIDTHS):
                tokens[index] += beyond * _WIDTHS[index]
            hazard = (self._ends[index] + 1.0) / (tokens[index] + prior)
            now += running[index] * hazard
            stays = exp(-hazard * _WIDTHS[index]) if index < len(_WIDTHS) else 0.0
            mean += left * (1.0 - stays) / hazard
            left *= stays
        return LeaveRate(min(1.0, now / count), 1.0 / max(1.0, min(mean, most)))
