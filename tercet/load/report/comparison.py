"""Two runs of one workload, or two sets of runs: what became better, what worse, and what is noise. Pure, seeded.

`interval` and `resampling` say how sure that is, and of what.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tercet.errors import LoadError
from tercet.load.folder import Run
from tercet.load.summary import PointSummary

from . import words
from .columns import FIGURES, Columns, Figure, Floats, figure_of, to_columns
from .difference import Difference, differences
from .interval import Change, Scale, Side, change
from .resampling import cut, draw, drawn, pieces_of, span_of

DRAWS = 1_000
# Values beyond a percentile; with fewer, what is drawn is always the same few.
MIN_BEYOND = 5
MIN_REQUESTS = 10
# Of requests that two runs of one schedule have in common.
_MIN_COMMON = 0.9
_NONE: Floats = np.empty(0)

Verdict = Literal["better", "worse", "noise", "unknown"]


class UnlikeRunsError(LoadError):
    """Runs are of different workloads; `found` says in what they differ."""

    def __init__(self, found: Sequence[Difference]) -> None:
        named = ", ".join(f"{each.key} ({each.a} and {each.b})" for each in found[:5])
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        super().__init__(f"the runs are of different workloads: {named}{more}")
        self.found = tuple(found)


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of one point. None where nothing was measured, or where the change is not known: `note` says why."""

    figure: Figure
    a: float | None
    b: float | None
    change: Change | None
    verdict: Verdict
    note: str = ""


@dataclass(frozen=True, slots=True)
class ComparedPoint:
    """One load. `paired`: both sides were asked for the same at the same moments, and were drawn as one."""

    point: int
    offered_per_s: float | None
    paired: bool
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is to be known of A and B. `workload` is empty unless they were to be compared all the same."""

    points: tuple[ComparedPoint, ...]
    workload: tuple[Difference, ...]
    environment: tuple[Difference, ...]
    warnings: tuple[str, ...]

    def has(self, verdict: Verdict) -> bool:
        """Whether any line has it."""
        return any(line.verdict == verdict for point in self.points for line in point.lines)


def compare(
    a: Sequence[Run], b: Sequence[Run], *, anyway: bool = False, seed: int = 0, draws: int = DRAWS
) -> Comparison:
    """Every figure of every load that both sides have. Same seed, same answer. Raises UnlikeRunsError, unless `anyway`,
    and LoadError if no load is in both."""
    first, *others = [*a, *b]
    unlike = _unlike(first, others)
    if unlike and not anyway:
        raise UnlikeRunsError(unlike)
    loads = [[_loads(run) for run in side] for side in (a, b)]
    points = []
    for load, point in loads[0][0].items():
        if not all(load in each for side in loads for each in side):
            continue
        columns = [[_columns(run, each[load]) for run, each in zip(side, found, strict=True)]
                   for side, found in zip((a, b), loads, strict=True)]  # fmt: skip
        rng = np.random.default_rng([seed, point.point])
        points.append(_compare_point(point, columns[0], columns[1], rng, draws))
    if not points:
        raise LoadError("the runs have no load in common")
    environment = differences(a[0].summary.environment, b[0].summary.environment)
    return Comparison(tuple(points), unlike, environment, tuple(dict.fromkeys(_warnings(a, b))))


def _unlike(first: Run, others: Sequence[Run]) -> tuple[Difference, ...]:
    """In what workloads differ, each difference once. Other seeds draw other requests of the same kind, and points are
    compared by what they offer."""
    found = [each for run in others for each in differences(first.summary.workload, run.summary.workload)]
    return tuple({each.key: each for each in found if each.key not in ("seed", "rates")}.values())


def same_schedule(a: Columns, b: Columns) -> bool:
    """Whether requests of the same index ask for the same at the same moment, and nearly all are in both."""
    _, of_a, of_b = np.intersect1d(a.index, b.index, assume_unique=True, return_indices=True)
    return (
        len(of_a) > _MIN_COMMON * max(len(a), len(b))
        and np.array_equal(a.prompt_tokens[of_a], b.prompt_tokens[of_b])
        and np.array_equal(a.max_tokens[of_a], b.max_tokens[of_b])
        and np.allclose(a.due_s[of_a], b.due_s[of_b], rtol=0, atol=1e-6)
    )


def _compare_point(
    point: PointSummary, a: Sequence[Columns], b: Sequence[Columns], rng: np.random.Generator, draws: int
) -> ComparedPoint:
    paired = len(a) == len(b) == 1 and same_schedule(a[0], b[0])
    cut_alike = ([*a, *b], [*a, *b]) if paired else (a, b)
    pieces = [min(map(pieces_of, runs)) for runs in cut_alike]
    spans = [span_of(*runs) for runs in cut_alike]
    weights = [draw(rng, count, draws) for count in pieces]
    if paired:
        weights[1] = weights[0]
    # Several runs are not taken apart.
    drawings = [
        drawn(side[0], FIGURES, cut(side[0], count, span), weight) if len(side) == 1 else {}
        for side, count, span, weight in zip((a, b), pieces, spans, weights, strict=True)
    ]
    lines = [_line(figure, (a, b), [each.get(figure.name, _NONE) for each in drawings], pieces) for figure in FIGURES]
    return ComparedPoint(point.point, point.offered_per_s, paired, tuple(lines))


def _line(figure: Figure, sides: Sequence[Sequence[Columns]], draws: Sequence[Floats], pieces: Sequence[int]) -> Line:
    """Of A and B."""
    measured = [[figure_of(columns, figure) for columns in side] for side in sides]
    a, b = (_mean(values) for values in measured)
    problems = [_problem(side, figure, mean) for side, mean in zip(sides, (a, b), strict=True)]
    if a is None or b is None or any(problems):
        note = "; ".join(f"{name}: {problem}" for name, problem in zip("AB", problems, strict=True) if problem)
        return Line(figure, a, b, None, "unknown", note)
    runs = [[value for value in values if value is not None] for values in measured]
    scale: Scale = "points" if figure.kind == "share" else "relative"
    found = change(Side(a, runs[0], draws[0], pieces[0]), Side(b, runs[1], draws[1], pieces[1]), scale)
    if found is None:
        return Line(figure, a, b, None, "unknown", _unknown(a, b))
    return Line(figure, a, b, found, _verdict(found, figure.lower_is_better))


def _unknown(a: float, b: float) -> str:
    zero = [name for name, value in (("A", a), ("B", b)) if value == 0]
    return f"{' and '.join(zero)}: 0" if zero else "few drawn runs have any"


def _verdict(found: Change, lower_is_better: bool) -> Verdict:
    if found.low <= 0 <= found.high:
        return "noise"
    return "better" if (found.high < 0) == lower_is_better else "worse"


def _problem(side: Sequence[Columns], figure: Figure, mean: float | None) -> str:
    """Why nothing can be said of it; "" if something can."""
    if mean is None:
        return "nothing measured"
    if len(side) > 1:
        # They tell themselves how much a figure of few values moves.
        return ""
    values = getattr(side[0], figure.column)
    count, needed = len(values), MIN_REQUESTS
    if figure.kind == "percentile":
        count = int((~np.isnan(values)).sum())
        needed = max(needed, math.ceil(MIN_BEYOND / (1 - figure.percent / 100) - 1e-9))
    return f"{count} values, needs {needed}" if count < needed else ""


def _mean(values: Sequence[float | None]) -> float | None:
    """None unless every run has one: those that could not say are not the best ones."""
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there and len(there) == len(values) else None


def _loads(run: Run) -> dict[tuple[float | None, int], PointSummary]:
    """The points of a run by what they offer, and by how many before them offer the same."""
    found: dict[tuple[float | None, int], PointSummary] = {}
    for point in run.summary.points:
        offered = point.offered_per_s
        found[offered, sum(each == offered for each, _ in found)] = point
    return found


def _columns(run: Run, point: PointSummary) -> Columns:
    warm_up_s = run.summary.workload.get("warm_up_s")
    begin_s = float(warm_up_s) if isinstance(warm_up_s, int | float) else 0.0
    return to_columns((row for row in run.rows if row.point == point.point), begin_s, point.duration_s)


def _warnings(a: Sequence[Run], b: Sequence[Run]) -> Iterator[str]:
    alone = [name for name, runs in (("A", a), ("B", b)) if len(runs) == 1]
    if alone:
        yield (
            f"{' and '.join(alone)}: one run. By how much runs of the same thing differ is not in the intervals; "
            "several a side tell it."
        )
    for name, run in itertools.chain((("A", run) for run in a), (("B", run) for run in b)):
        if run.summary.interrupted:
            yield f"{name}: one run was interrupted, and has not all of its loads."
        for point in run.summary.points:
            if point.client_limited:
                yield f"{name}, {words.load_name(point)}: the client was the limit, so that figures are also its own."
