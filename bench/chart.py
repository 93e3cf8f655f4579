"""Lines over a few loads as an SVG that a page can show: panels side by side, a legend for all of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 340, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 34, 40
_COLORS = ("#1f6feb", "#d1442f", "#2e8b57", "#8250df")
# Readable on light and on dark pages.
_INK = "#6e7781"


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines by name, each of (x, y) > 0 in order of x. `log`: of y by its magnitude. `limit`: a line to stay below."""

    title: str
    x_label: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    log: bool = False
    limit: float | None = None


def chart(panels: Sequence[Panel]) -> str:
    """The SVG. Raises ValueError if a panel has no points."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    colors = {name: _COLORS[index % len(_COLORS)] for index, name in enumerate(names)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH * len(panels)} {_HEIGHT + 24}"'
        f' font-family="sans-serif" font-size="11" fill="{_INK}">'
    ]
    for index, panel in enumerate(panels):
        parts += [f'<g transform="translate({_WIDTH * index} 0)">', *_panel(panel, colors), "</g>"]
    for index, name in enumerate(names):
        x, y = _LEFT + 150 * index, _HEIGHT + 14
        parts.append(f'<path d="M{x} {y - 4}h20" stroke="{colors[name]}" stroke-width="2"/>')
        parts.append(_text(x + 26, y, name))
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, colors: Mapping[str, str]) -> list[str]:
    points = [point for line in panel.lines.values() for point in line]
    if not points:
        raise ValueError(f"nothing to draw in {panel.title!r}")
    xs = sorted({x for x, _ in points})
    ys = [y for _, y in points] + ([panel.limit] if panel.limit is not None else [])
    ticks = _decades(ys) if panel.log else _round_steps(max(ys))
    low, high = _scaled(ticks[0], panel.log), _scaled(ticks[-1], panel.log)

    def across(x: float) -> float:
        # Loads double from one to the next: equal distances.
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (xs.index(x) + 0.5) / len(xs)

    def down(y: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - (_scaled(y, panel.log) - low) / (high - low))

    parts = [_text(_LEFT, 18, panel.title, "font-weight:bold")]
    for tick in ticks:
        parts.append(f'<path d="M{_LEFT} {down(tick):.1f}H{_WIDTH - _RIGHT}" stroke="{_INK}" stroke-opacity="0.25"/>')
        parts.append(_text(_LEFT - 6, down(tick) + 4, f"{tick:,.10g}", "text-anchor:end"))
    parts += [_text(across(x), _HEIGHT - _BOTTOM + 16, f"{x:g}", "text-anchor:middle") for x in xs]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(_text(middle, _HEIGHT - _BOTTOM + 32, panel.x_label, "text-anchor:middle"))
    if panel.limit is not None:
        y = down(panel.limit)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="{_INK}" stroke-dasharray="4 3"/>')
    for name, line in panel.lines.items():
        path = "L".join(f"{across(x):.1f} {down(y):.1f}" for x, y in line)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colors[name]}" stroke-width="2"/>')
        parts += [f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="3" fill="{colors[name]}"/>' for x, y in line]
    return parts


def _scaled(y: float, log: bool) -> float:
    return math.log10(y) if log else y


def _decades(ys: Sequence[float]) -> list[float]:
    """Powers of ten around all of them."""
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]


def _round_steps(largest: float) -> list[float]:
    """From 0 to above `largest` in about four steps of 1, 2 or 5."""
    unit = 10.0 ** math.floor(math.log10(largest / 4))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor * 5 >= largest)
    return [step * index for index in range(math.ceil(largest / step) + 1)]


def _text(x: float, y: float, text: str, style: str = "") -> str:
    styled = f' style="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{styled}>{escape(text)}</text>'
