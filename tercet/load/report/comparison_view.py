"""A comparison as tables, as a page, and as data. Pure, but for what a page draws."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from . import drawing, words
from .chart import Intervals
from .comparison import ComparedPoint, Comparison, Line
from .difference import Difference
from .markup import element
from .page import shown, svg_figure, whole
from .tables import Table

_NOTE = (
    "The interval holds the change with 95 %. Of twenty figures that have not changed one is called better or worse "
    "all the same."
)
_CHANGED = ("better", "worse")
_SHOWN: Mapping[str, Callable[[float | None], str]] = {"ms": words.milliseconds, "%": words.percent}


def tables(comparison: Comparison) -> Iterator[Table]:
    """What differs, then one for each load."""
    if comparison.workload:
        yield _differences("workload", "Workloads differ", comparison.workload)
    for point in comparison.points:
        how = "Both were asked for the same at the same moments, and were drawn together. " if point.paired else ""
        rows = [_row(line) for line in point.lines]
        head = ["", "A", "B", "change", "interval", "verdict"]
        yield Table(f"point-{point.point}", f"At {_load(point)}", f"{how}{_NOTE}", head, rows)
    if comparison.environment:
        yield _differences("environment", "Environments differ", comparison.environment)


def page(comparison: Comparison, a: Sequence[str], b: Sequence[str]) -> str:
    """`a` and `b` name the runs. Raises SwitchedOffError if matplotlib is not there."""
    drawing.check_installed()
    body = [element("p", text, class_="warning", role="note") for text in comparison.warnings]
    plots = [_intervals(point) for point in comparison.points]
    body.append(element("div", *(svg_figure(plot) for plot in plots if plot.rows), class_="plots"))
    body += map(shown, tables(comparison))
    named = (f"{side}: {', '.join(words.name(each, 200) for each in names)}" for side, names in (("A", a), ("B", b)))
    return whole("Runs compared", *(element("p", element("code", text)) for text in named), body=body)


def to_data(comparison: Comparison, a: Sequence[str], b: Sequence[str]) -> dict[str, Any]:
    """As JSON has it: what is not known is null."""
    return {
        "a": list(a),
        "b": list(b),
        "points": [
            {
                "point": point.point,
                "offered_per_s": point.offered_per_s,
                "paired": point.paired,
                "figures": [_line_data(line) for line in point.lines],
            }
            for point in comparison.points
        ],
        "workload": [dataclasses.asdict(each) for each in comparison.workload],
        "environment": [dataclasses.asdict(each) for each in comparison.environment],
        "warnings": list(comparison.warnings),
    }


def _line_data(line: Line) -> dict[str, Any]:
    change = line.change
    bounds = (None, None, None) if change is None else (change.value, change.low, change.high)
    # JSON has no infinity.
    known = [bound if bound is not None and math.isfinite(bound) else None for bound in bounds]
    return {
        "name": line.figure.name,
        "unit": line.figure.unit,
        "a": line.a,
        "b": line.b,
        "change": known[0],
        "change_low": known[1],
        "change_high": known[2],
        "change_unit": _unit(line),
        "verdict": line.verdict,
        "note": line.note,
    }


def _row(line: Line) -> list[str]:
    number = _SHOWN.get(line.figure.unit, words.amount)
    unit = "" if line.figure.unit in _SHOWN else f", {line.figure.unit}"
    values = [f"{line.figure.name}{unit}", number(line.a), number(line.b)]
    if line.change is None:
        return [*values, words.NOTHING, line.note, line.verdict]
    change = line.change
    interval = f"{words.signed(change.low, '')}to {words.signed(change.high, _unit(line))}"
    return [*values, words.signed(change.value, _unit(line)), interval, line.verdict]


def _unit(line: Line) -> str:
    return "points" if line.figure.kind == "share" else "%"


def _intervals(point: ComparedPoint) -> Intervals:
    changes = [(line.figure, line.change) for line in point.lines if line.change is not None]
    rows = [
        (f"{figure.name}{'' if figure.unit == 'ms' else f', {figure.unit}'}", change.value, change.low, change.high)
        for figure, change in changes
        if figure.kind != "share" and math.isfinite(change.high)
    ]
    told = {verdict: [line.figure.name for line in point.lines if line.verdict == verdict] for verdict in _CHANGED}
    changed = [f"{verdict}: {', '.join(names)}" for verdict, names in told.items() if names]
    sentence = f"{'; '.join(changed)}." if changed else "what differs is noise."
    sentence = sentence[0].upper() + sentence[1:]
    return Intervals(f"changes-{point.point}", f"From A to B at {_load(point)}", sentence, "change, %", rows)


def _load(point: ComparedPoint) -> str:
    if point.offered_per_s is None:
        return f"point {point.point}"
    return f"{words.amount(point.offered_per_s)} requests a second"


def _differences(key: str, caption: str, found: Sequence[Difference]) -> Table:
    rows = [[words.name(each.key), words.value(each.a), words.value(each.b)] for each in found]
    return Table(key, caption, "", ["", "A", "B"], rows)
