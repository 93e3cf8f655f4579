"""What benches say of many measurements beside percentiles: shares of a window of time, ranges. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def overlap(spans: Iterable[Sequence[float]], begin: float, end: float) -> float:
    """Seconds that spans of time, each (from, to), have within a window."""
    return sum(max(0.0, min(to, end) - max(since, begin)) for since, to in spans)


def spread(values: Sequence[float]) -> str:
    """The range of several runs, for a table."""
    return f"{min(values):.4g} .. {max(values):.4g}"
