"""From what was observed to pass or fail, line by line. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tercet.errors import LoadError
from tercet.load.folder import Run
from tercet.load.record import Row
from tercet.load.report.cost import Price, costs, workers_of
from tercet.load.summary import PointSummary

from .faults import FaultsSeen, freed_p99_ms, requests_left, wrong_ends
from .findings import Findings
from .measure import Source
from .row_figures import figure_of
from .spec import CostSpec, Line, Spec

# Of findings, in one line for people.
_SHOWN = 3


class Verdict(Enum):
    """What is said of a line."""

    PASS = "pass"
    FAIL = "fail"
    # The server does not say what is needed.
    NOT_TOLD = "not told"
    # The client was the limit, or there was nothing to be measured.
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Judged:
    """A line with its verdict, and a figure where there is one. `detail` is for people, `where` the folder of the run
    that says more; both may be empty."""

    line: Line
    verdict: Verdict
    figure: float | None
    detail: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """All that lines are judged by. Loads by name, with the reason of those that could not be run."""

    runs: Mapping[str, Run] = field(default_factory=dict)
    not_run: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, Findings] = field(default_factory=dict)
    faults: FaultsSeen | None = None
    folders: Mapping[str, str] = field(default_factory=dict)


class UnknownError(Exception):
    """There is no figure. `told`: the server would have to say it, and does not."""

    def __init__(self, problem: str, *, told: bool = True) -> None:
        super().__init__(problem)
        self.told = told


def judge(spec: Spec, observed: Observed) -> tuple[Judged, ...]:
    """Every line, in the order of the contract."""
    return tuple(_judged(line, spec, observed) for line in spec.lines)


def _judged(line: Line, spec: Spec, observed: Observed) -> Judged:
    where = observed.folders.get(line.load, "")
    try:
        figure, detail = _figure(line, spec, observed)
    except UnknownError as error:
        verdict = Verdict.NOT_MEASURED if error.told else Verdict.FAIL if line.required else Verdict.NOT_TOLD
        return Judged(line, verdict, None, str(error), where)
    return Judged(line, Verdict.PASS if line.holds(figure) else Verdict.FAIL, figure, detail, where)


def _figure(line: Line, spec: Spec, observed: Observed) -> tuple[float, str]:
    """Raises UnknownError."""
    if line.measure.source is Source.OUTPUTS:
        return _found(observed.outputs.get(line.measure_name))
    if line.measure.source is Source.FAULTS:
        return _fault(line.measure_name, observed.faults)
    if line.load in observed.not_run:
        raise UnknownError(observed.not_run[line.load])
    run = observed.runs[line.load]
    if line.measure_name == "held_rate":
        return _held_rate(run, spec.capacity.held_percent)
    if line.measure_name == "qualified_per_s" and line.rate is None:
        return max(_qualified_per_s(line, run, point) for point in run.summary.points), ""
    if line.measure_name == "goodput_percent":
        most = most_qualified_per_s(observed.runs.get(spec.loads[line.load].of))
        return 100 * max(_qualified_per_s(line, run, point) for point in run.summary.points) / most, f"of {most:.3g} /s"
    point = _point(run, line.rate)
    if line.measure_name == "qualified_per_s":
        return _qualified_per_s(line, run, point), ""
    if line.measure_name == "waiting_most":
        return _waiting_most(run, point)
    if line.measure_name == "cost_per_qualified":
        return _cost(run, point, spec.cost)
    return _of_rows(line, run, point)


def _of_rows(line: Line, run: Run, point: PointSummary) -> tuple[float, str]:
    check_client(point)
    figure, detail = figure_of(line.measure_name, rows_of(line, run, point))
    if figure is None:
        raise UnknownError("nothing was refused" if "refus" in line.measure_name else "no request says anything of it")
    return figure, detail


def _found(findings: Findings | None) -> tuple[float, str]:
    if findings is None or not findings.looked_at:
        raise UnknownError("nothing could be looked at", told=False)
    shown = "; ".join(findings.wrong[:_SHOWN])
    more = len(findings.wrong) - _SHOWN
    return len(findings.wrong), f"{shown}; and {more} more" if more > 0 else shown


def _fault(name: str, seen: FaultsSeen | None) -> tuple[float, str]:
    assert seen is not None
    if name == "wrong_ends":
        return _found(wrong_ends(seen))
    if name == "freed_p99_ms":
        freed = freed_p99_ms(seen)
        if freed is None:
            raise UnknownError("the server does not tell what became of cancels", told=False)
        return freed, f"of {len(seen.freed_ms)} cancels"
    if seen.left is None:
        raise UnknownError("the server does not tell what it has left", told=False)
    return (seen.left.kv_used if name == "blocks_left" else requests_left(seen.left)), ""


def _point(run: Run, rate: float | None) -> PointSummary:
    if rate is None:
        return run.summary.points[0]
    return run.summary.points[[float(each) for each in run.summary.workload["rates"]].index(rate)]


def check_client(point: PointSummary) -> None:
    """Raises UnknownError if the client has measured itself as well."""
    if point.client_limited:
        lag = "" if point.client_lag_ms is None else f", {point.client_lag_ms.p99:.1f} ms late at P99"
        raise UnknownError(f"the client was the limit{lag}")


def most_qualified_per_s(run: Run | None) -> float:
    """Of all points. Raises UnknownError if there is none."""
    if run is None:
        raise UnknownError("the load that it is compared with was not run")
    for point in run.summary.points:
        check_client(point)
    most = max(point.qualified_per_s for point in run.summary.points)
    if not most:
        raise UnknownError("no request of the load that it is compared with has kept its SLO")
    return most


def _qualified_per_s(line: Line, run: Run, point: PointSummary) -> float:
    check_client(point)
    if not (line.traffic_class or line.from_s or line.until_s):
        return point.qualified_per_s
    rows = rows_of(line, run, point)
    length_s = (line.until_s or point.arrival_s) - line.from_s
    return sum(row.qualified for row in rows) / length_s if length_s > 0 else 0.0


def _held_rate(run: Run, held_percent: float) -> tuple[float, str]:
    """The largest rate up to which all hold: one that holds beyond one that does not is luck."""
    held = 0.0
    for point in sorted(run.summary.points, key=lambda point: point.offered_per_s or 0.0):
        check_client(point)
        qualified = sum(each.qualified for each in point.by_class.values())
        if point.offered_per_s is None:
            raise UnknownError("the load has no rates")
        if not point.offered or 100 * qualified < held_percent * point.offered:
            return held, f"{qualified} of {point.offered} kept their SLO at {point.offered_per_s:g} /s"
        held = point.offered_per_s
    return held, "no rate was too much"


def _waiting_most(run: Run, point: PointSummary) -> tuple[float, str]:
    waiting = [each.server.queued for each in run.samples if each.point == point.point and each.server is not None]
    if not waiting:
        raise UnknownError("the server does not tell what waits", told=False)
    return max(waiting), f"of {len(waiting)} looks"


def _cost(run: Run, point: PointSummary, spec: CostSpec) -> tuple[float, str]:
    check_client(point)
    try:
        workers = spec.workers or workers_of(run)
    except LoadError as error:
        raise UnknownError(str(error), told=False) from None
    cost = costs(run, Price(spec.worker_hour, workers))[point.point].cost_per_qualified
    if cost is None:
        raise UnknownError("no request has kept its SLO: there is no price")
    return cost, f"{workers} workers"


def rows_of(line: Line, run: Run, point: PointSummary) -> Sequence[Row]:
    """The rows that a line is about."""
    return [
        row
        for row in run.rows
        if row.point == point.point
        and not row.warm_up
        and line.traffic_class in ("", row.traffic_class)
        and line.from_s <= row.due_s
        and (line.until_s is None or row.due_s < line.until_s)
    ]
