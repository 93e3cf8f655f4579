"""The page: whole, alone, and what others have named is only text in it; looked at in Chromium."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tercet.errors import SwitchedOffError
from tercet.load.folder import Run
from tercet.load.report import drawing, words
from tercet.load.report.chart import Bars, Chart, Intervals, Line, Mark
from tercet.load.report.charts import charts
from tercet.load.report.comparison import compare
from tercet.load.report.comparison_view import page as comparison_page
from tercet.load.report.cost import Price, costs
from tercet.load.report.markup import element, joined
from tercet.load.report.page import page
from tests.gateway.web import browser

from .made_run import ENVIRONMENT, WORKLOAD, random_rows, refused, row, run
from .test_charts import sweep

HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "$\\frac{1}{0}$", "_hidden", "a" * 500, "]]>",
    "&lt;", "\x00\x1b[31mred\u202e", "模型 مرحبا 🙂", "%(name)s {0} {name}", "", "</style><b>", "font-family: x",
    'url(#x) href="#y" id="z" d="1.23456"', "#0b6e63",
)  # fmt: skip
WIDE, PHONE = 1280, 360


class Reader(HTMLParser):
    """Elements with their attributes, and what is open at the end."""

    VOID = frozenset({"meta", "link", "br", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def hostile() -> Run:
    """All that somebody else names is hostile."""
    rows = [
        row(at, at * 0.1, tenant=name, traffic_class=HOSTILE[at - 1], request_id=name, qualified=at % 2 == 0,
            missed="" if at % 2 == 0 else name)
        for at, name in enumerate(HOSTILE)
    ]  # fmt: skip
    rows += [refused(20 + at, 0.1, reason=name, tenant=name) for at, name in enumerate(HOSTILE)]
    rows += [dataclasses.replace(each, point=1) for each in rows]
    workload = {"arrivals": HOSTILE[0], "input": HOSTILE[1], "output": HOSTILE[2], HOSTILE[3]: list(HOSTILE)}
    environment = {
        "server": {"model": HOSTILE[1]},
        "host": {"cpu": HOSTILE[0], "cpus": 2, "gpus": [{"name": HOSTILE[1]}]},
    }
    made = run(rows, rates=(1.0, 2.0), workload=workload, environment=environment)
    return dataclasses.replace(made, summary=dataclasses.replace(made.summary, command=" ".join(HOSTILE)))


def check_alone(text: str) -> Reader:
    """It is whole, its ids are its own, and nothing in it is fetched or run."""
    read = Reader(text)
    assert read.open == []
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert not [tag for tag, _ in read.elements if tag in ("script", "img", "iframe", "object", "base", "form", "b")]
    for _, attributes in read.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcset", "action")]
        for name in ("href", "xlink:href"):
            target = attributes.get(name) or "#"
            assert target.startswith("#") or target == "data:,"
            assert target in ("#", "data:,") or target[1:] in ids
        for at in re.findall(r"url\((.*?)\)", attributes.get("style") or attributes.get("clip-path") or ""):
            assert at[0] == "#"
            assert at[1:] in ids
        for of in (attributes.get("aria-labelledby") or "").split():
            assert of in ids
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    return read


@pytest.mark.parametrize(
    "made",
    [sweep(), run([]), run([refused()]), run([row()], rates=(None,)), run(random_rows(1, 50)), hostile()],
    ids=["sweep", "nothing", "refused", "one", "one load", "hostile"],
)
def test_it_is_whole_and_alone(made: Run) -> None:
    read = check_alone(page(made, costs(made, Price(2.0, 1))))
    figures = [attributes for tag, attributes in read.elements if tag == "figure"]
    assert [each["id"] for each in figures] == [plot.key for plot in charts(made)]
    drawn = [attributes for tag, attributes in read.elements if tag == "svg"]
    assert all(each["role"] == "img" and each["aria-labelledby"] for each in drawn)
    assert len([tag for tag, _ in read.elements if tag == "h1"]) == 1
    # A cell of a row's name, and as many others as there are heads.
    assert all(attributes["scope"] in ("row", "col") for tag, attributes in read.elements if tag == "th")


def test_what_others_name_is_text() -> None:
    text = page(hostile())
    for name in HOSTILE:
        assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", text)
        if "<" in name:
            assert name not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert f">{'a' * 59}…</th>" in text
    # A dollar is no formula, and what begins with an underscore is no secret.
    assert "$\\frac{1}{0}$" in text
    assert "qualified, _hidden" not in text.partition("<svg")[0]


def test_what_it_says_of_the_whole() -> None:
    environment = {
        **ENVIRONMENT,
        "server": {"model": "small"},
        "host": {"cpu": "Epyc", "cpus": 2, "gpus": []},
        "software": {"tercet": "1.0", "git_revision": "0123456789abcdef"},
    }
    workload = {**WORKLOAD, "input": "medium", "output": "chat"}
    text = page(run([row()], environment=environment, workload=workload))
    assert "<h1>small: poisson arrivals, medium to chat</h1>" in text
    assert "2 × Epyc, Tercet 1.0, git 0123456789ab" in text
    assert "No request was completed." not in text
    assert "No request was completed." in page(run([refused()]))
    late = page(run([row(at, sent_s=0.1) for at in range(5)]))
    assert "The client was the limit at 10/s" in late


@pytest.mark.parametrize("part", [HOSTILE[:6], HOSTILE[6:11], HOSTILE[11:]], ids=["first", "second", "third"])
def test_plots_of_any_text(part: Sequence[str]) -> None:
    names = [words.name(name, 24) for name in part]
    lines = [Line(name, [(1.0, 2.0), (2.0, 3.0)]) for name in names]
    chart = Chart("chart", "", "", names[0], names[1], lines, [Mark(names[2], 1.5)])
    bars = Bars("bars", "", "", names[3], [(name, 1.0) for name in names])
    intervals = Intervals("intervals", "", "", "", [(name, 1.0, -1.0, 2.0) for name in names])
    for plot in (chart, bars, intervals):
        text = drawing.to_svg(plot)
        check_alone(text)
        assert {unescape(found) for found in re.findall(r">([^<>]*)</text>", text)} >= {name for name in names if name}


def test_plots_have_the_colours_of_the_page() -> None:
    plot = next(each for each in charts(sweep()) if each.key == "latency")
    text = drawing.to_svg(plot)
    assert not re.search(r"#[0-9a-f]{6}", text.replace("url(#", ""))
    for variable in ("--tone-0", "--tone-1", "--tone-2", "--muted", "--line", "--sans"):
        assert f"var({variable})" in text
    assert "<metadata" not in text
    assert "<style" not in text
    # Text is text: it can be searched for, and read out.
    assert ">requests offered a second</text>" in text
    assert drawing.to_svg(plot) == text
    assert drawing.to_png(plot).startswith(b"\x89PNG")


def test_without_matplotlib_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SwitchedOffError, match=r"pip install 'tercet\[bench\]'"):
        page(run([row()]))


def test_texts_are_escaped_and_elements_are_not() -> None:
    assert joined("<a>", element("b", "&", title='"')) == '&lt;a&gt;<b title="&quot;">&amp;</b>'
    assert element("p", class_="x", aria_label="y", hidden="") == '<p class="x" aria-label="y" hidden></p>'


def test_a_comparison_is_a_page_as_well() -> None:
    a = run(random_rows(1, 300))
    b = run(random_rows(2, 300, slower=2.0), environment={"git": HOSTILE[0]})
    read = check_alone(comparison_page(compare([a], [b]), [HOSTILE[0]], [HOSTILE[1]]))
    verdicts = [attributes["class"] for tag, attributes in read.elements if tag == "span"]
    assert verdicts.count("worse") > 5
    empty = run([refused(at) for at in range(3)])
    check_alone(comparison_page(compare([empty], [empty]), ["a"], ["b"]))


@pytest.fixture(scope="module")
def chromium() -> Iterator[str]:
    with browser.chromium() as session:
        if session is None:
            pytest.skip(browser.MISSING)
        yield session


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of them."""
    folder = tmp_path_factory.mktemp("pages")
    found = compare([run(random_rows(2, 300))], [run(random_rows(1, 300, slower=1.5))])
    made = {
        "sweep": page(sweep(), costs(sweep(), Price(2.0, 1))),
        "hostile": page(hostile()),
        "compared": comparison_page(found, ["a"], ["b"]),
    }
    for name, text in made.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
async def looked_at(chromium: str, pages: Path) -> AsyncIterator[browser.Page]:
    """A browser before them."""
    async with httpx2.AsyncClient(base_url=chromium, timeout=60) as http:
        shown = browser.Page(http, f"file://{pages}")
        await shown.complaints()
        yield shown
        await shown.leave()


_SIZES = """
return [...document.querySelectorAll("figure svg, table")].map((each) => {
  const box = each.getBoundingClientRect();
  return [box.width, box.height];
});
"""
# Texts of plots that stick out of them.
_CUT = """
return [...document.querySelectorAll("figure svg")].flatMap((svg) => {
  const whole = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.left < whole.left - 2 || box.right > whole.right + 2 || box.top < whole.top - 2;
  }).map((text) => text.textContent);
});
"""
_TEXT = (
    "return parseFloat(getComputedStyle(document.querySelector('figure svg text')).fontSize) * "
    "document.querySelector('figure svg').getBoundingClientRect().width / "
    "document.querySelector('figure svg').viewBox.baseVal.width"
)


@pytest.mark.parametrize("name", ["sweep", "hostile", "compared"])
@pytest.mark.parametrize("width", [WIDE, PHONE])
async def test_a_browser_shows_it(looked_at: browser.Page, name: str, width: int) -> None:
    await looked_at.resize(width)
    await looked_at.prefer(color_scheme="dark" if width == PHONE else "light")
    await looked_at.visit(f"{name}.html")
    assert await looked_at.complaints() == []
    assert await looked_at.run("return performance.getEntriesByType('resource').length") == 0
    sizes: Sequence[tuple[float, float]] = await looked_at.run(_SIZES)
    assert len(sizes) > 1
    assert all(across > 100 and down > 20 for across, down in sizes)
    # Tables are scrolled, the page is not.
    assert await looked_at.run("return document.documentElement.scrollWidth <= window.innerWidth")
    assert await looked_at.run(_CUT) == []
    assert await looked_at.run(_TEXT) > 8
    ground = await looked_at.run("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(18, 20, 22)" if width == PHONE else "rgb(246, 246, 243)")
