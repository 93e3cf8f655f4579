"""From what was observed to pass or fail, line by line. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median_high

from tercet.errors import LoadError
from tercet.load.folder import Run
from tercet.load.record import Row
from tercet.load.report.cost import Price, costs, workers_of
from tercet.load.summary import MAX_LAG_MS, MAX_LOOP_SHARE, PointSummary

from .faults import FaultsSeen, freed_p99_ms, requests_left, wrong_ends
from .findings import Findings
from .measure import Basis
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
    """There is no figure. `untold`: the server would have to say it, and does not."""

    def __init__(self, problem: str, *, untold: bool = False) -> None:
        super().__init__(problem)
        self.untold = untold


def judge(spec: Spec, observed: Observed) -> tuple[Judged, ...]:
    """Every line, in the order of the contract."""
    return tuple(_judged(line, spec, observed) for line in spec.lines)


def _judged(line: Line, spec: Spec, observed: Observed) -> Judged:
    where = observed.folders.get(line.load, "")
    try:
        figure, detail = _figure(line, spec, observed)
    except UnknownError as error:
        missing = Verdict.FAIL if line.required else Verdict.NOT_TOLD
        verdict = missing if error.untold else Verdict.NOT_MEASURED
        return Judged(line, verdict, None, str(error), where)
    return Judged(line, Verdict.PASS if line.holds(figure) else Verdict.FAIL, figure, detail, where)


def _figure(line: Line, spec: Spec, observed: Observed) -> tuple[float, str]:
    """With what there is to say of it. Raises UnknownError."""
    if line.measure.basis is Basis.OUTPUTS:
        return _found(observed.outputs.get(line.measure_name))
    if line.measure.basis is Basis.FAULTS:
        return _fault(line.measure_name, observed.faults)
    if line.load in observed.not_run:
        raise UnknownError(observed.not_run[line.load])
    run = observed.runs[line.load]
    points = run.summary.points
    if line.rate is not None:
        points = tuple(point for point in points if run.summary.workload["rates"][point.point] == line.rate)
    elif line.measure_name not in _OF_ALL_RATES:
        points = points[:1]
    lag = check_client(run, points, spec.client.max_lag_ms)
    figure, detail = _of_load(line, spec, observed, run, points)
    return figure, "; ".join(filter(None, (detail, lag)))


_OF_ALL_RATES = frozenset({"held_rate", "qualified_per_s", "goodput_percent"})


def _of_load(line: Line, spec: Spec, observed: Observed, run: Run, points: Sequence[PointSummary]) -> tuple[float, str]:
    """Raises UnknownError."""
    name = line.measure_name
    if name == "held_rate":
        return _held_rate(points, spec.capacity.held_percent)
    if name == "qualified_per_s":
        return max(_qualified_per_s(line, run, point) for point in points), ""
    if name == "goodput_percent":
        most = most_qualified_per_s(observed.runs.get(spec.loads[line.load].of), spec.client.max_lag_ms)
        return 100 * max(_qualified_per_s(line, run, point) for point in points) / most, f"of {most:.3g} /s"
    if name == "waiting_most":
        return _waiting_most(run, points[0])
    if name == "cost_per_qualified":
        return _cost(run, points[0], spec.cost)
    figure, detail = figure_of(name, rows_of(line, run, points[0]))
    if figure is None:
        raise UnknownError("nothing was refused" if "refus" in name else "no request says anything of it")
    return figure, detail


def _found(findings: Findings | None) -> tuple[float, str]:
    if findings is None or not findings.looked_at:
        raise UnknownError("nothing could be looked at", untold=True)
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
            raise UnknownError("the server does not tell what became of cancels", untold=True)
        return freed, f"of {len(seen.freed_ms)} cancels"
    if seen.left is None:
        raise UnknownError("the server does not tell what it has left", untold=True)
    return (seen.left.kv_used if name == "blocks_left" else requests_left(seen.left)), ""


def check_client(run: Run, points: Sequence[PointSummary], max_lag_ms: float) -> str:
    """How late it was, if that is worth a word. Raises UnknownError if the client has measured itself as well."""
    lag_ms = max(0.0 if point.client_lag_ms is None else point.client_lag_ms.p99 for point in points)
    if lag_ms > max_lag_ms:
        raise UnknownError(f"the client was the limit, {lag_ms:.1f} ms late at P99")
    for point in points:
        shares = [sample.client.cpu_share for sample in run.samples if sample.point == point.point]
        if shares and median_high(shares) > MAX_LOOP_SHARE:
            raise UnknownError("the client was the limit: its loop had no time left")
    return f"client {lag_ms:.1f} ms late at P99" if lag_ms > MAX_LAG_MS else ""


def most_qualified_per_s(run: Run | None, max_lag_ms: float) -> float:
    """Of all points. Raises UnknownError if there is none."""
    if run is None:
        raise UnknownError("the load that it is compared with was not run")
    check_client(run, run.summary.points, max_lag_ms)
    most = max(point.qualified_per_s for point in run.summary.points)
    if not most:
        raise UnknownError("no request of the load that it is compared with has kept its SLO")
    return most


def _qualified_per_s(line: Line, run: Run, point: PointSummary) -> float:
    """Raises UnknownError if the line is about a time in which nothing was due."""
    if not (line.from_s or line.until_s):
        of_class = point.by_class.get(line.traffic_class)
        if line.traffic_class:
            return of_class.qualified_per_s if of_class is not None else 0.0
        return point.qualified_per_s
    # Of what was due in a part of the time, by the length of that part: both count from the start of the load.
    warm_up_s = float(run.summary.workload.get("warm_up_s") or 0)
    begin_s, end_s = max(line.from_s, warm_up_s), warm_up_s + point.arrival_s
    length_s = (end_s if line.until_s is None else min(line.until_s, end_s)) - begin_s
    if length_s <= 0:
        raise UnknownError("nothing was due then")
    return sum(row.qualified for row in rows_of(line, run, point)) / length_s


def _held_rate(points: Sequence[PointSummary], held_percent: float) -> tuple[float, str]:
    """The largest rate up to which all hold: one that holds beyond one that does not is luck."""
    held = 0.0
    for point in sorted(points, key=lambda point: point.offered_per_s or 0.0):
        if point.offered_per_s is None:
            raise UnknownError("the load has no rates")
        # Nobody promises anything to who went away.
        asked = point.offered - point.outcomes.get("cancelled", 0)
        if not asked or 100 * point.qualified < held_percent * asked:
            return held, f"{point.qualified} of {asked} kept their SLO at {point.offered_per_s:g} /s"
        held = point.offered_per_s
    return held, "no rate was too much"


def _waiting_most(run: Run, point: PointSummary) -> tuple[float, str]:
    waiting = [each.server.queued for each in run.samples if each.point == point.point and each.server is not None]
    if not waiting:
        raise UnknownError("the server does not tell what waits", untold=True)
    return max(waiting), f"of {len(waiting)} looks"


def _cost(run: Run, point: PointSummary, spec: CostSpec) -> tuple[float, str]:
    try:
        workers = spec.workers or workers_of(run)
    except LoadError as error:
        raise UnknownError(str(error), untold=True) from None
    cost = costs(run, Price(spec.worker_hour, workers))[point.point].cost_per_qualified
    if cost is None:
        raise UnknownError("no request has kept its SLO: there is no price")
    return cost, f"{workers} worker{'' if workers == 1 else 's'}"


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
