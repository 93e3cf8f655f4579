"""A chart is well-formed, says what it was given, and keeps to its frame."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.chart import Panel, chart

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*panels: Panel) -> ElementTree.Element:
    return ElementTree.fromstring(chart(panels))


def texts(root: ElementTree.Element) -> list[str | None]:
    return [text.text for text in root.iter(f"{SVG}text")]


def test_it_says_what_it_shows() -> None:
    with_it, without = [(0.5, 8.0), (1.0, 17.0), (2.0, 18.0)], [(0.5, 8.0), (1.0, 17.0), (2.0, 1.0)]
    lines = {"admission on": with_it, "admission <off>": without}
    root = drawn(Panel("done/s", "load", lines), Panel("first token, ms", "load", lines, log=True, limit=1000.0))
    shown = texts(root)
    for text in ("done/s", "first token, ms", "admission on", "admission <off>", "0.5", "2", "20", "1,000", "1"):
        assert text in shown
    assert len(list(root.iter(f"{SVG}circle"))) == 12
    assert len({path.get("stroke") for path in root.iter(f"{SVG}path")}) == 3


@given(
    st.lists(st.floats(1e-3, 1e7), min_size=1, max_size=6),
    st.booleans(),
    st.none() | st.floats(1e-3, 1e7),
)
def test_all_points_are_within_the_frame(ys: list[float], log: bool, limit: float | None) -> None:
    panel = Panel("some", "x", {"line": [(2.0**index, y) for index, y in enumerate(ys)]}, log, limit)
    points = list(drawn(panel).iter(f"{SVG}circle"))
    assert len(points) == len(ys)
    for point in points:
        assert 58 <= float(point.get("cx") or 0) <= 326
        assert 33.9 <= float(point.get("cy") or 0) <= 180.1
    heights = {y: float(point.get("cy") or 0) for y, point in zip(ys, points, strict=True)}
    ordered = [heights[y] for y in sorted(heights)]
    assert ordered == sorted(ordered, reverse=True)


def test_a_panel_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("nothing to draw in 'empty'")):
        chart([Panel("empty", "x", {"line": []})])
