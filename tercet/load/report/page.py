"""A report as one page of HTML that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tercet.load.folder import Run
from tercet.load.summary import MAX_LAG_MS, Summary

from . import drawing, tables, words
from .charges import Charges
from .chart import Intervals, Missing
from .charts import Plot, charts
from .cost import PointCost
from .difference import flat
from .markup import Markup, element, joined, table

_VERDICTS = ("better", "worse")
_STYLE = Path(__file__).with_name("page.css")


def page(run: Run, costs: Sequence[PointCost] = (), charges: Charges | None = None) -> str:
    """Raises SwitchedOffError if matplotlib is not there."""
    drawing.check_installed()
    summary = run.summary
    return whole(
        title(summary),
        element("p", element("code", words.name(summary.command, 2_000))) if summary.command else Markup(),
        element("p", _where(summary.environment), class_="note"),
        body=[*_body(run, costs, charges)],
    )


def title(summary: Summary) -> str:
    """What was asked, of whom."""
    workload, server = summary.workload, summary.environment.get("server")
    asked = [words.value(workload[key]) for key in ("arrivals", "input", "output") if workload.get(key)]
    model = server.get("model") if isinstance(server, Mapping) else None
    of = f"{words.name(str(model))}: " if model else ""
    return f"{of}{asked[0]} arrivals, {' to '.join(asked[1:])}" if len(asked) == 3 else f"{of}a load"


def whole(heading: str, *head: Markup, body: Sequence[Markup]) -> str:
    """A page with this in it."""
    style = Markup(_STYLE.read_text(encoding="utf-8"))
    document = element(
        "html",
        element(
            "head",
            Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
            element("title", f"{heading} · Tercet"),
            # An icon of nothing, else a browser asks whoever serves the page for one.
            Markup('<link rel="icon" href="data:,">'),
            element("style", style),
        ),
        element("body", element("header", element("h1", heading), *head), element("main", *body)),
        lang="en",
    )
    return f"<!doctype html>\n{document}\n"


def shown(each: tables.Table) -> Markup:
    """A table; a verdict in its colour."""
    rows = [[element("span", cell, class_=cell) if cell in _VERDICTS else cell for cell in row] for row in each.rows]
    return table(each.caption, each.note, each.head, rows, key=each.key)


def described(data: Mapping[str, Any]) -> Markup:
    """Keys and values; of what nobody knows there is a dash."""
    pairs = (joined(element("dt", words.name(key)), element("dd", words.value(value))) for key, value in flat(data))
    return element("dl", *pairs)


def _body(run: Run, costs: Sequence[PointCost], charges: Charges | None) -> Iterator[Markup]:
    points = run.summary.points
    yield from _warnings(run)
    yield shown(tables.figures(points))
    yield element("h2", "Plots")
    yield element("div", *(svg_figure(plot) for plot in charts(run)), class_="plots")
    if (reasons := tables.reasons(points)) is not None:
        yield element("h2", "Reasons")
        yield shown(reasons)
    if groups := [*tables.groups(points)]:
        yield element("h2", "Who asked")
        yield from map(shown, groups)
    if costs or charges is not None:
        yield element("h2", "Cost")
    if costs:
        yield shown(tables.cost(points, costs))
    if charges is not None:
        yield shown(tables.charged(charges))
    for heading, data in (("Workload", run.summary.workload), ("Environment", run.summary.environment)):
        yield element("h2", heading)
        yield described(data)


def _warnings(run: Run) -> Iterator[Markup]:
    if run.summary.interrupted and run.summary.points:
        text = (
            f"The run was interrupted: loads that were to follow {words.load_name(run.summary.points[-1])} are missing."
        )
        yield element("p", text, class_="warning", role="note")
    limited = [words.load_name(point) for point in run.summary.points if point.client_limited]
    if limited:
        text = (
            f"The client was the limit at {words.listed(limited)}: one in 100 requests was sent more than "
            f"{MAX_LAG_MS:g} ms late, or its loop had no moment left. What it measured there is not the server's alone."
        )
        yield element("p", text, class_="warning", role="note")
    if not any(point.outcomes.get("completed") for point in run.summary.points):
        yield element("p", "No request was completed.", class_="warning", role="note")


def svg_figure(plot: Plot | Intervals) -> Markup:
    """A plot with its sentence, or why there is none."""
    says = f"{plot.key}-says"
    heading, caption = element("h3", plot.title), element("figcaption", plot.sentence, id=says)
    if isinstance(plot, Missing):
        return element("figure", heading, caption, id=plot.key)
    svg = Markup(drawing.to_svg(plot).replace("<svg", f'<svg role="img" aria-labelledby="{says}"', 1))
    return element("figure", heading, svg, caption, id=plot.key)


def _where(environment: Mapping[str, Any]) -> str:
    """In one line."""
    host, software = environment.get("host"), environment.get("software")
    host, software = (each if isinstance(each, Mapping) else {} for each in (host, software))
    gpus = host.get("gpus")
    gpus = gpus if isinstance(gpus, list) else []
    names = sorted({str(gpu.get("name")) for gpu in gpus if isinstance(gpu, Mapping)})
    parts = [
        f"{len(gpus)} × {', '.join(names)}" if gpus else None,
        f"{words.value(host['cpus'])} × {words.value(host['cpu'])}" if host.get("cpu") and host.get("cpus") else None,
        f"Tercet {words.value(software['tercet'])}" if software.get("tercet") else None,
        f"git {str(software['git_revision'])[:12]}" if software.get("git_revision") else None,
    ]
    return words.name(", ".join(part for part in parts if part), 300)
