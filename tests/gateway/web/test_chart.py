"""What charts draw of what they are given."""

from __future__ import annotations

from typing import Any

from .browser import Page

DRAW = """
const [times, series, options] = arguments;
return import("/console/chart.js").then(({ Chart }) => {
  const figure = document.createElement("figure");
  const chart = new Chart(figure, { title: "Drawn", format: String, ...options });
  chart.show(times, series);
  return {
    lines: [...figure.querySelectorAll(".canvas .line")].map((each) => each.getAttribute("d")),
    areas: [...figure.querySelectorAll(".canvas .area")].map((each) => each.getAttribute("d")),
    scale: [...figure.querySelectorAll(".scale[text-anchor=end]")].map((each) => each.textContent),
    label: figure.querySelector("svg").getAttribute("aria-label"),
  };
});
"""


async def draw(page: Page, times: list[float], *series: list[float | None], **options: Any) -> dict[str, Any]:
    named = [{"name": f"s{index}", "values": values} for index, values in enumerate(series)]
    drawn: dict[str, Any] = await page.run(DRAW, times, named, options)
    return drawn


def points(path: str) -> list[list[tuple[float, float]]]:
    """The stretches of a path."""
    stretches = [each.removesuffix("Z").split("L") for each in path.split("M")[1:]]
    return [[(float(x), float(y)) for x, y in (point.split(" ") for point in each)] for each in stretches]


async def test_a_line_has_a_point_for_each_value(modules: Page) -> None:
    drawn = await draw(modules, [0, 1, 2], [0, 4, 2])
    [[low, high, middle]] = points(drawn["lines"][0])
    assert low[0] < high[0] < middle[0]
    assert high[1] < middle[1] < low[1]
    assert middle[1] == (low[1] + high[1]) / 2
    assert drawn["scale"][:3] == ["0", "2", "4"]
    assert drawn["label"] == "Drawn: s0 2"


async def test_what_is_not_known_is_not_drawn(modules: Page) -> None:
    drawn = await draw(modules, [0, 1, 2, 3, 30, 31], [1, None, 1, 1, 1, 1], stacked=True)
    assert [len(each) for each in points(drawn["lines"][0])] == [1, 2, 2]
    # Nobody looked between 3 and 30.
    assert [len(each) for each in points(drawn["areas"][0])] == [2, 4, 4]


async def test_areas_stand_on_one_another(modules: Page) -> None:
    drawn = await draw(modules, [0, 1], [1, 1], [2, 3], stacked=True, top=4)
    first, second = ([each[0] for each in map(points, drawn[kind])] for kind in ("lines", "areas"))
    bottom = second[0][2][1]
    heights = [[round((bottom - y) / (bottom - first[0][0][1]), 3) for _, y in line] for line in first]
    assert heights == [[1, 1], [3, 4]]
    # The second begins where the first ends.
    assert second[1][2:] == list(reversed(first[0]))


async def test_scales_follow_the_values_in_steps(modules: Page) -> None:
    tops = {}
    for value in (0, 1, 2, 3, 5, 9, 10, 11, 61, 1000, 1001):
        tops[value] = (await draw(modules, [0], [value]))["scale"][2]
    assert tops == {
        0: "2", 1: "2", 2: "2", 3: "4", 5: "6", 9: "10", 10: "10", 11: "20", 61: "80", 1000: "1000", 1001: "2000",
    }  # fmt: skip


async def test_a_chart_without_series_says_so(modules: Page) -> None:
    drawn = await draw(modules, [0, 1], empty="none since the start")
    assert drawn["lines"] == []
    assert drawn["label"] == "Drawn: none since the start"
