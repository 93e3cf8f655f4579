"""What a plot shows, as data. Whoever draws it knows no run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# As many lines as can be told apart.
MAX_LINES = 6
# Points of a line that a plot of this size has room for.
_MAX_POINTS = 300


@dataclass(frozen=True, slots=True)
class Line:
    """(x, y) in the order of x. Of several, the n-th has the n-th colour."""

    label: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Mark:
    """An upright line through the plot, at an x."""

    label: str
    at: float


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over an axis. `sentence` says what is to be seen, also to those who do not see it."""

    key: str
    title: str
    sentence: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    marks: Sequence[Mark] = ()
    log_x: bool = False
    log_y: bool = False
    # Each value holds until the next one.
    steps: bool = False
    # Each point was measured; else a line is what many make.
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """Counts of names, the largest first."""

    key: str
    title: str
    sentence: str
    x_label: str
    bars: Sequence[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Intervals:
    """Of each name a value and between which bounds it lies, against 0."""

    key: str
    title: str
    sentence: str
    x_label: str
    rows: Sequence[tuple[str, float, float, float]]


@dataclass(frozen=True, slots=True)
class Missing:
    """A plot that cannot be made; `sentence` says why."""

    key: str
    title: str
    sentence: str


def thinned(points: Sequence[tuple[float, float]], most: int = _MAX_POINTS) -> list[tuple[float, float]]:
    """Some of many points, evenly, with the first and the last."""
    if len(points) <= most:
        return list(points)
    return [points[round(index * (len(points) - 1) / (most - 1))] for index in range(most)]


def averaged(points: Sequence[tuple[float, float]], most: int = _MAX_POINTS) -> list[tuple[float, float]]:
    """Many moments as fewer, each the mean of some that follow one another."""
    if len(points) <= most:
        return list(points)
    size = -(-len(points) // most)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def spread_out(count: int, most: int = MAX_LINES) -> list[int]:
    """Positions of at most so many of `count` things, evenly, with the first and the last."""
    if count <= most:
        return list(range(count))
    return sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})
