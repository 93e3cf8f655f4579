"""When requests are due, whatever becomes of those before. Pure; seeds give the same moments again."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from .workload_error import WorkloadError, whole

DEFAULT_BURST = 10
MAX_LOOPS = 1 << 16


class Kind(Enum):
    """How requests come."""

    CONSTANT = "constant"  # at equal distances
    POISSON = "poisson"  # independently of each other
    BURST = "burst"  # so many at one moment, then none for as long as these take at the rate
    RAMP = "ramp"  # at a rate that grows evenly, from nothing to the given one at the end
    AT_ONCE = "at-once"
    CLOSED = "closed"  # so many clients, each of which asks when it has its answer
    TRACE = "trace"  # when a file says


@dataclass(frozen=True, slots=True)
class Arrivals:
    """`count` is the size of a burst, or the number of clients of a closed loop."""

    kind: Kind
    count: int = 0

    @property
    def has_rate(self) -> bool:
        """Whether a rate in requests a second means something."""
        return self.kind not in (Kind.AT_ONCE, Kind.CLOSED, Kind.TRACE)

    def mean_rate(self, rate: float) -> float | None:
        """Requests a second on the mean; None where there is no rate."""
        if not self.has_rate:
            return None
        return rate / 2 if self.kind is Kind.RAMP else rate

    def moments(self, rate: float, rng: random.Random, ramp_s: float) -> Iterator[float]:
        """Seconds from the start, for ever; of a ramp until `ramp_s`, its end. Not of closed loops and traces."""
        if self.kind is Kind.AT_ONCE:
            return itertools.repeat(0.0)
        if self.kind is Kind.CONSTANT:
            return (index / rate for index in itertools.count())
        if self.kind is Kind.BURST:
            return (index // self.count * self.count / rate for index in itertools.count())
        if self.kind is Kind.POISSON:
            return itertools.accumulate(rng.expovariate(rate) for _ in itertools.count())
        assert self.kind is Kind.RAMP
        return _ramp(rate, ramp_s)


def _ramp(rate: float, ramp_s: float) -> Iterator[float]:
    """Where the number of requests that were to come by then, rate * t^2 / (2 * ramp_s), passes each whole number."""
    for index in itertools.count():
        moment = math.sqrt(2 * ramp_s * index / rate)
        if moment >= ramp_s:
            return
        yield moment


def parse_arrivals(field: str, text: str) -> Arrivals:
    """A kind by its name; ``burst:N`` and ``closed:N`` have a number. Raises WorkloadError."""
    name, colon, rest = text.partition(":")
    kinds = {kind.value: kind for kind in Kind if kind is not Kind.TRACE}
    kind = kinds.get(name)
    if kind is None:
        raise WorkloadError(field, f"{text!r} is none of {', '.join(kinds)}; burst:N and closed:N take a number")
    if kind is Kind.BURST:
        return Arrivals(kind, whole(field, rest, least=1, most=MAX_LOOPS) if colon else DEFAULT_BURST)
    if kind is Kind.CLOSED:
        return Arrivals(kind, whole(field, rest, least=1, most=MAX_LOOPS))
    if colon:
        raise WorkloadError(field, f"{name} takes no number")
    return Arrivals(kind)
