"""How far a figure of one run might have come out otherwise: the run drawn again from pieces of itself. Pure, seeded.

What is independent. Requests are not: those that run together wait for each other, so a slow moment is in many of them,
and drawing requests one by one would take it for many slow moments. Pieces of the run that are much longer than a
request lives hardly know of each other, so pieces are drawn: requests in the order of their schedule, cut into blocks
that follow one another (Carlstein 1986), for what requests took and for shares; windows of time for rates, in which
counts what was over there. Two runs of one schedule ask for the same at the same moments, so the same pieces are drawn
of both at once: what a piece is asked for, which is a large part of why pieces differ, cancels out.

Between runs more differs than pieces of one can tell: where a side has several, see `interval`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .columns import Columns, Figure, Floats, Ints, rank

# As few as tell how much they vary, so that they are as long as can be.
PIECES = 40

Weights = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Cut:
    """A run in pieces. `block`: of each request, [requests]; `window`: likewise, for rates. Both are below `pieces`."""

    pieces: int
    block: Ints
    window: Ints


def pieces_of(columns: Columns) -> int:
    """A piece has at least one request."""
    return max(1, min(PIECES, len(columns)))


def span_of(*runs: Columns) -> tuple[int, int]:
    """The smallest and the largest index of a request in runs that are to be cut alike."""
    indexes = np.concatenate([columns.index for columns in runs])
    return (int(indexes.min()), int(indexes.max())) if len(indexes) else (0, 0)


def cut(columns: Columns, pieces: int, span: tuple[int, int]) -> Cut:
    """`span`: as span_of has it."""
    first, last = span
    block = (columns.index - first) * pieces // (last - first + 1)
    span_s = columns.duration_s or 1.0
    # One that never was over counts at the end.
    since = np.nan_to_num((columns.end_s - columns.begin_s) / span_s, nan=1.0)
    window = np.clip((since * pieces).astype(np.int64), 0, pieces - 1)
    return Cut(pieces, block, window)


def draw(rng: np.random.Generator, pieces: int, draws: int) -> Weights:
    """How often each piece is in each drawn run: [draws, pieces], as many in all as there are pieces."""
    return rng.multinomial(pieces, np.full(pieces, 1 / pieces), size=draws).astype(np.int32)


def drawn(columns: Columns, figures: Sequence[Figure], parts: Cut, weights: Weights) -> Mapping[str, Floats]:
    """The figures of each drawn run by name, each [draws], in the figure's unit; NaN where nothing was measured."""
    found: dict[str, Floats] = {}
    percents: dict[str, list[Figure]] = {}
    for figure in figures:
        values = getattr(columns, figure.column)
        if figure.kind == "percentile":
            percents.setdefault(figure.column, []).append(figure)
        elif figure.kind == "share":
            offered = _sums(np.ones_like(values), parts.block, weights)
            found[figure.name] = 100 * _ratio(_sums(values, parts.block, weights), offered)
        else:
            found[figure.name] = _sums(values, parts.window, weights) / (columns.duration_s or np.nan)
    for column, some in percents.items():
        asked = [figure.percent for figure in some]
        each = _percentiles(getattr(columns, column), parts.block, weights, asked)
        found.update(zip((figure.name for figure in some), each, strict=True))
    return found


def _sums(values: Ints, piece: Ints, weights: Weights) -> Floats:
    totals = np.bincount(piece, weights=values.astype(np.float64), minlength=weights.shape[1])
    return np.asarray(weights @ totals, dtype=np.float64)


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)


def _percentiles(values: Floats, block: Ints, weights: Weights, percents: Sequence[float]) -> Floats:
    """[percents, draws]; a value counts as often as its block was drawn."""
    there = ~np.isnan(values)
    order = np.argsort(values[there], kind="stable")
    ranked, blocks = values[there][order], block[there][order]
    found = np.full((len(percents), len(weights)), np.nan)
    # Of the smallest values, so many are of each block: [values + 1, pieces].
    below = np.zeros((len(ranked) + 1, weights.shape[1]), dtype=np.int32)
    np.cumsum(blocks[:, None] == np.arange(weights.shape[1]), axis=0, dtype=np.int32, out=below[1:])
    totals = weights @ below[-1]
    some = totals > 0
    for at, percent in enumerate(percents):
        wanted = np.array([rank(int(total), percent) for total in totals[some]])
        found[at, some] = ranked[_first_with(below[1:], weights[some], wanted)]
    return found


def _first_with(upto: Weights, weights: Weights, wanted: Ints) -> Ints:
    """By bisection the first position of each draw up to which so many values are wanted, [draws]."""
    low, high = np.zeros(len(weights), dtype=np.int64), np.full(len(weights), len(upto) - 1)
    while (low < high).any():
        middle = (low + high) // 2
        enough = np.einsum("dp,dp->d", upto[middle], weights) >= wanted
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    return low
