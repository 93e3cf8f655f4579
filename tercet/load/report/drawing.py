"""Plots drawn: as SVG that a page takes into itself, or as PNG. Needs matplotlib; knows no run."""

from __future__ import annotations

import importlib.util
import io
import re
import warnings
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from tercet.errors import SwitchedOffError

from .chart import Bars, Chart, Intervals, Line

Drawn = Chart | Bars | Intervals

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Each of another lightness and another dash, for those who see few colours. In an SVG they become the page's own, which
# has others in the dark: see page.css.
_TONES = ("#0b6e63", "#b4540a", "#5b3fc4", "#b3246b", "#1763b8", "#6b6f1a")
_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)), (0, (9, 3)), (0, (1, 1)))
_INK, _GRID = "#5a5e65", "#dddcd6"
_VARIABLES = {
    **{tone: f"var(--tone-{at})" for at, tone in enumerate(_TONES)},
    _INK: "var(--muted)",
    _GRID: "var(--line)",
}
# Inches; a point of text is 1 / 72 of one. So small that a phone shows the text as large as it is.
_WIDTH, _HEIGHT = 4.9, 3.1
# Points: of a legend's line, and of a character beside it.
_HANDLE, _CHARACTER = 42, 5.6
_AROUND_ROWS, _ROW = 0.6, 0.28
_PNG_DPI = 160
_TAG, _REFERENCE = re.compile(r"<[^>]*>"), re.compile(r"(?:url\(#|href=\"#)([^\")]+)")
_SETTINGS: Any = {
    "svg.fonttype": "none",
    # Equal plots have equal names in them.
    "svg.hashsalt": "tercet",
    # A dollar is a dollar.
    "text.parse_math": False,
    "font.size": 9.5,
    "text.color": _INK,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


def check_installed() -> None:
    """Raises SwitchedOffError if matplotlib is not there. Loads nothing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SwitchedOffError(
            "plots need matplotlib, which is not installed here; `pip install 'tercet[bench]'` installs it",
            metadata={"package": "matplotlib"},
        )


def to_svg(plot: Drawn) -> str:
    """An ``<svg>`` element in the page's colours and font, whose names nothing else in the page has."""
    with io.StringIO() as out:
        _save(plot, out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        text = out.getvalue()
    # A style of its own would hold for the whole page.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text[text.index("<svg") :], flags=re.DOTALL)
    used = {name for tag in _TAG.findall(text) for name in _REFERENCE.findall(tag)}
    return _TAG.sub(lambda tag: _in_page(tag[0], plot.key, used), text).strip()


def _in_page(tag: str, key: str, used: Collection[str]) -> str:
    """A tag with the page's colours, font and size, and without names that nobody uses. Texts stay as they are."""
    for color, variable in _VARIABLES.items():
        tag = tag.replace(color, variable)
    tag = re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", tag)
    tag = re.sub(r' d="[^"]*"', _shorter, tag)
    tag = re.sub(r' id="([^"]+)"', lambda found: f' id="{key}-{found[1]}"' if found[1] in used else "", tag)
    tag = _REFERENCE.sub(lambda found: found[0].replace("#", f"#{key}-", 1), tag)
    return re.sub(r' (?:width|height)="[^"]*"', "", tag) if tag.startswith("<svg") else tag


def _shorter(path: re.Match[str]) -> str:
    """A tenth of a point is less than anyone sees."""
    return re.sub(r"(\.\d)\d+", r"\1", path[0].replace(" \n", "").replace("\n", ""))


def to_png(plot: Drawn) -> bytes:
    """On white."""
    with io.BytesIO() as out:
        _save(plot, out, format="png", dpi=_PNG_DPI, facecolor="white")
        return out.getvalue()


def _save(plot: Drawn, out: io.StringIO | io.BytesIO, **how: Any) -> None:
    # Late: half a second.
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Names in scripts that the font of measures lacks are drawn by the reader's.
    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph")
        if isinstance(plot, Chart):
            figure = Figure(figsize=(_WIDTH, _HEIGHT))
            _draw_chart(figure, plot)
        else:
            rows = plot.bars if isinstance(plot, Bars) else plot.rows
            figure = Figure(figsize=(_WIDTH, _AROUND_ROWS + _ROW * len(rows)))
            if isinstance(plot, Bars):
                _draw_bars(figure, plot)
            else:
                _draw_intervals(figure, plot)
        figure.savefig(out, transparent="facecolor" not in how, **how)


def _draw_chart(figure: Figure, chart: Chart) -> None:
    axes = figure.add_subplot()
    if chart.log_x:
        axes.set_xscale("log")
    if chart.log_y:
        axes.set_yscale("log")
    handles = [_draw_line(axes, chart, line, at) for at, line in enumerate(chart.lines)]
    if not chart.log_y:
        axes.set_ylim(bottom=0, top=None if any(y > 0 for line in chart.lines for _, y in line.points) else 1)
    _draw_marks(axes, chart)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    _plain_numbers(axes, chart)
    if len(handles) > 1:
        labels = [line.label for line in chart.lines]
        columns = int(72 * _WIDTH // (_HANDLE + _CHARACTER * max(map(len, labels))))
        figure.legend(handles, labels, loc="outside upper left", ncols=max(1, min(3, columns)), handlelength=2.4)


def _draw_line(axes: Axes, chart: Chart, line: Line, at: int) -> Any:
    color, dash = _TONES[at % len(_TONES)], _DASHES[at % len(_DASHES)]
    xs, ys = [x for x, _ in line.points], [y for _, y in line.points]
    (drawn,) = axes.plot(
        xs, ys, color=color, linestyle=dash, linewidth=1.6, marker="o" if chart.dots or len(xs) == 1 else "",
        markersize=3.5, drawstyle="steps-post" if chart.steps else "default",
    )  # fmt: skip
    return drawn


def _draw_marks(axes: Axes, chart: Chart) -> None:
    """Named above the plot."""
    for mark in chart.marks:
        axes.axvline(mark.at, color=_INK, linestyle=(0, (4, 3)), linewidth=0.9)
        axes.annotate(
            mark.label, (mark.at, 1), xycoords=("data", "axes fraction"), xytext=(0, 2), textcoords="offset points",
            ha="center", va="bottom", fontsize=9,
        )  # fmt: skip


def _plain_numbers(axes: Axes, chart: Chart) -> None:
    """1,000 rather than 10³."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for axis, log in ((axes.xaxis, chart.log_x), (axes.yaxis, chart.log_y)):
        axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.10g}"))
        if log:
            axis.set_minor_formatter(NullFormatter())


def _draw_bars(figure: Figure, bars: Bars) -> None:
    axes = figure.add_subplot()
    names = [name for name, _ in bars.bars][::-1]
    values = [value for _, value in bars.bars][::-1]
    # By position: names may be equal when they are shortened.
    axes.barh(range(len(values)), values, color=_TONES[0], height=0.6)
    axes.set_yticks(range(len(names)), names)
    axes.bar_label(axes.containers[0], [f"{value:,.4g}" for value in values], padding=3, color=_INK)  # type: ignore[arg-type]
    axes.set_xlim(0, max(values, default=0) * 1.15 or 1)
    axes.set_xlabel(bars.x_label)
    axes.grid(visible=False, axis="y")


def _draw_intervals(figure: Figure, intervals: Intervals) -> None:
    axes = figure.add_subplot()
    rows = intervals.rows[::-1]
    values = [value for _, value, _, _ in rows]
    around = [[value - low for _, value, low, _ in rows], [high - value for _, value, _, high in rows]]
    axes.axvline(0, color=_INK, linewidth=0.9)
    axes.errorbar(values, range(len(rows)), xerr=around, fmt="o", color=_TONES[0], markersize=3.5, capsize=2.5)
    axes.set_yticks(range(len(rows)), [name for name, _, _, _ in rows])
    axes.set_xlabel(intervals.x_label)
    axes.grid(visible=False, axis="y")
