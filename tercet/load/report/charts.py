"""The plots of one run. Pure: from what it has recorded to what each shows, and the sentence that says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from tercet.load.folder import Run
from tercet.load.record import Row
from tercet.load.summary import MAX_LAG_MS, PointSummary

from . import words
from .chart import MAX_LINES, Bars, Chart, Line, Mark, Missing, spread_out, thinned
from .knee import knee, largest_kept
from .timeline import timeline

Plot = Chart | Bars | Missing
# Sizes in ascending order, each with how often it came.
Counts = Sequence[tuple[float, int]]

# Of requests, for a load to count as one that was served as promised.
KEPT = 0.95
_KEPT = words.percent(100 * KEPT)
_MAX_BARS = 12
_LEAST_MS = 1e-3
# Characters of a name beside a plot.
_LONGEST = 24
_LATENCY, _GOODPUT = "Latency against load", "Goodput"


def charts(run: Run) -> list[Plot]:
    """In the order in which they are read."""
    points = run.summary.points
    return [_latency(points), _goodput(points), _first_tokens(run), _gaps(points), *timeline(run), _refusals(points),
            _lag(run)]  # fmt: skip


def _rated(points: Sequence[PointSummary]) -> list[tuple[float, PointSummary]]:
    """Those that offer a rate, the smallest first."""
    rated = [(point.offered_per_s, point) for point in points if point.offered_per_s is not None]
    return sorted(rated, key=lambda each: each[0])


def knee_of(points: Sequence[PointSummary]) -> float | None:
    """Requests a second: of the 95th percentile of the time to the first token."""
    measured = [(rate, point.ttft_ms.p95) for rate, point in _rated(points) if point.ttft_ms is not None]
    return knee([rate for rate, _ in measured], [ms for _, ms in measured])


def kept_up_to(points: Sequence[PointSummary]) -> float | None:
    """Requests a second up to which KEPT of them were qualified."""
    rated = [(rate, point) for rate, point in _rated(points) if point.offered]
    shares = [point.qualified / point.offered for _, point in rated]
    return largest_kept([rate for rate, _ in rated], shares, KEPT)


def _latency(points: Sequence[PointSummary]) -> Plot:
    rated = [(rate, point.ttft_ms) for rate, point in _rated(points) if point.ttft_ms is not None]
    if len(rated) < 2:
        return Missing(
            "latency", _LATENCY, "Needs two loads or more at which something was served, as of --rate 1,2,4."
        )
    lines = [
        Line(f"p{percent}", [(rate, getattr(spread, f"p{percent}")) for rate, spread in rated])
        for percent in (50, 95, 99)
    ]
    (low, first), (high, last) = rated[0], rated[-1]
    sentence = (
        f"The first token of 95 in 100 requests came within {words.milliseconds(first.p95)} at {words.amount(low)} "
        f"requests a second, within {words.milliseconds(last.p95)} at {words.amount(high)}. "
    )
    marks = []
    if (found := knee_of(points)) is not None:
        marks.append(Mark("knee", found))
        sentence += f"The knee is at {words.amount(found)}: beyond it more load is paid for with latency."
    else:
        sentence += "There is no knee among these loads."
    return Chart(
        "latency", _LATENCY, sentence, "requests offered a second", "time to first token, ms", lines, marks,
        log_y=all(y > 0 for line in lines for _, y in line.points), dots=True,
    )  # fmt: skip


def _goodput(points: Sequence[PointSummary]) -> Plot:
    rated = _rated(points)
    if len(rated) < 2:
        return _goodput_of_one(points)
    lines = [
        Line("offered", [(rate, rate) for rate, _ in rated]),
        Line("accepted", [(rate, point.accepted_per_s) for rate, point in rated]),
        Line("qualified", [(rate, point.qualified_per_s) for rate, point in rated]),
    ]
    classes = sorted({name for _, point in rated for name in point.by_class})
    if len(classes) > 1:
        for name in classes[: MAX_LINES - len(lines)]:
            some = [(rate, point.by_class[name].qualified_per_s) for rate, point in rated if name in point.by_class]
            lines.append(Line(f"qualified, {words.name(name, _LONGEST)}", some))
    _, best = max(rated, key=lambda each: each[1].qualified_per_s)
    kept = kept_up_to(points)
    sentence = (
        f"At most {words.amount(best.qualified_per_s)} requests a second were qualified, of "
        f"{words.amount(best.offered_per_s)} offered; "
    )
    if kept is None:
        sentence += f"at no load from the smallest on {_KEPT} of them."
    else:
        sentence += f"up to {words.amount(kept)} offered, {_KEPT} or more of them."
    marks = [] if kept is None else [Mark(f"{_KEPT} qualified", kept)]
    return Chart(
        "goodput", _GOODPUT, sentence, "requests offered a second", "requests a second", lines, marks, dots=True
    )


def _goodput_of_one(points: Sequence[PointSummary]) -> Plot:
    if not any(point.offered for point in points):
        return Missing("goodput", _GOODPUT, "No request was offered.")
    bars: list[tuple[str, float]] = []
    for point in points:
        of = f"{words.load_name(point)}: " if len(points) > 1 else ""
        bars += [(f"{of}{kind}", rate) for kind, rate in
                 (("accepted", point.accepted_per_s), ("qualified", point.qualified_per_s))]  # fmt: skip
        if len(point.by_class) > 1 and len(points) == 1:
            bars += [
                (f"qualified, {words.name(name, _LONGEST)}", each.qualified_per_s)
                for name, each in point.by_class.items()
            ]
    first = points[0]
    sentence = (
        f"{words.amount(first.accepted_per_s)} requests a second were accepted, "
        f"{words.amount(first.qualified_per_s)} of them qualified: completed with all that was promised."
    )
    return Bars("goodput", _GOODPUT, sentence, "requests a second", bars[:_MAX_BARS])


def _first_tokens(run: Run) -> Plot:
    title = "Time to first token"
    measured = _by_load(run, lambda row: None if row.first_s is None else (row.first_s - row.due_s) * 1e3)
    if not measured:
        return Missing("ttft", title, "Nothing was measured: no request had a token.")
    last, some = measured[-1]
    sentence = (
        f"{_at_load(last, len(measured), 'Half')} of {len(some):,} requests had their first token within "
        f"{words.milliseconds(some[(len(some) - 1) // 2])}, all within {words.milliseconds(some[-1])}."
    )
    return _spread("ttft", title, sentence, "from when a request was due, ms", "requests", _counted(measured))


def _gaps(points: Sequence[PointSummary]) -> Plot:
    title = "Time between tokens"
    measured = [(point, point.gap_ms) for point in points if point.gap_counts and point.gap_ms is not None]
    if not measured:
        return Missing("gap", title, "Nothing was measured: no request had two tokens.")
    last, spread = measured[-1]
    sentence = (
        f"{_at_load(last, len(measured), '99 in 100')} of {spread.count:,} gaps were not longer than "
        f"{words.milliseconds(spread.p99)}; the longest was {words.milliseconds(spread.max)}."
    )
    counted = [(point, point.gap_counts) for point, _ in measured]
    return _spread("gap", title, sentence, "between two messages with tokens, ms", "gaps", counted)


def _refusals(points: Sequence[PointSummary]) -> Plot:
    title = "Refused and failed, by reason"
    counts = Counter[str]()
    for point in points:
        counts.update({f"refused: {words.name(reason, _LONGEST)}": count for reason, count in point.refusals.items()})
        counts.update({f"failed: {words.name(reason, _LONGEST)}": count for reason, count in point.failures.items()})
    if not counts:
        return Missing("refusals", title, "None was.")
    total, offered = counts.total(), sum(point.offered for point in points)
    reason, most = counts.most_common(1)[0]
    sentence = f"{total:,} of {offered:,} requests were refused or failed, {most:,} of these {reason}."
    return Bars("refusals", title, sentence, "requests", counts.most_common(_MAX_BARS))


def _lag(run: Run) -> Plot:
    title = "How late the client was"
    measured = _by_load(run, lambda row: None if row.sent_s is None else (row.sent_s - row.due_s) * 1e3)
    if not measured:
        return Missing("lag", title, "No request was sent.")
    limited = [words.load_name(point) for point in run.summary.points if point.client_limited]
    if limited:
        sentence = f"The client was the limit at {words.listed(limited)}."
    else:
        worst = max(point.client_lag_ms.p99 for point, _ in measured if point.client_lag_ms is not None)
        sentence = f"At no load were more than one in 100 requests sent more than {words.milliseconds(worst)} late."
    marks = [Mark(f"limit, {MAX_LAG_MS:g} ms", MAX_LAG_MS)]
    return _spread("lag", title, sentence, "sent after it was due, ms", "requests", _counted(measured), marks)


def _by_load(run: Run, reading: Callable[[Row], float | None]) -> list[tuple[PointSummary, list[float]]]:
    """What was read of requests, in ascending order, of loads that have any."""
    found: dict[int, list[float]] = {}
    for row in run.rows:
        if not row.warm_up and (value := reading(row)) is not None:
            # An axis of magnitudes has no zero.
            found.setdefault(row.point, []).append(max(value, _LEAST_MS))
    return [(point, sorted(found[point.point])) for point in run.summary.points if point.point in found]


def _counted(measured: Sequence[tuple[PointSummary, Sequence[float]]]) -> list[tuple[PointSummary, Counts]]:
    return [(point, [(value, 1) for value in some]) for point, some in measured]


def _spread(
    key: str, title: str, sentence: str, x_label: str, of_what: str,
    measured: Sequence[tuple[PointSummary, Counts]], marks: Sequence[Mark] = (),
) -> Chart:  # fmt: skip
    """A line for each load, or for some of many: percent that are at most so large."""
    shown = [measured[at] for at in spread_out(len(measured))]
    lines = [Line(words.load_name(point), thinned(list(_cumulative(counts)))) for point, counts in shown]
    y_label = f"share of {of_what}, %"
    return Chart(key, title, sentence, x_label, y_label, lines, marks, log_x=True, steps=True)


def _cumulative(counts: Counts) -> Iterator[tuple[float, float]]:
    total, below = sum(count for _, count in counts), 0
    # From the bottom.
    yield counts[0][0], 0.0
    for size, count in counts:
        below += count
        yield size, 100 * below / total


def _at_load(point: PointSummary, loads: int, what: str) -> str:
    """Of several loads it is said which one is meant."""
    return f"At {words.load_name(point)}, {what.lower()}" if loads > 1 else what
