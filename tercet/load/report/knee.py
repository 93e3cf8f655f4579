"""The load from which on more of it is paid for with latency. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# A curve that never doubles has no knee: scaled to a square, any noise has a bend.
MIN_RISE = 2.0
_EQUAL = 1e-9


def knee(loads: Sequence[float], latencies: Sequence[float]) -> float | None:
    """The load whose latency is furthest below the straight line from the first point to the last, both axes scaled to
    1: the knee of Satopää et al., "Finding a Kneedle in a Haystack" (2011), for curves that bend upwards. With 1 / (1 -
    load) between a and b it is 1 - sqrt((1 - a) (1 - b)).

    Latencies measured at one load count as their median, and one below that of a smaller load as that one: a queue does
    not shrink with load, what says so is noise. Of several equally far it is the smallest. None where there is none:
    fewer than three loads, a latency that does not double, or none below the line.
    """
    if len(loads) != len(latencies):
        raise ValueError("as many loads as latencies")
    xs = np.unique(np.asarray(loads, dtype=float))
    if len(xs) < 3:
        return None
    at = np.searchsorted(xs, loads)
    ys = np.array([np.median(np.asarray(latencies, dtype=float)[at == index]) for index in range(len(xs))])
    ys = np.maximum.accumulate(ys)
    if ys[-1] < MIN_RISE * ys[0] or ys[-1] == ys[0]:
        return None
    below = (xs - xs[0]) / (xs[-1] - xs[0]) - (ys - ys[0]) / (ys[-1] - ys[0])
    furthest = int(np.argmax(below > below.max() - _EQUAL))
    return float(xs[furthest]) if below[furthest] > _EQUAL else None


def largest_kept(loads: Sequence[float], shares: Sequence[float], wanted: float) -> float | None:
    """The largest load up to which, beginning with the smallest, at least that share of requests was qualified. None if
    the first one has less."""
    kept = None
    for load, share in sorted(zip(loads, shares, strict=True), key=lambda point: (point[0], point[1])):
        if share < wanted:
            break
        kept = load
    return kept
