"""Who uses the console without a mouse, without good eyes, without much room."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tercet.v1 import operations_pb2 as pb

from .browser import Page
from .conftest import WatchedScheduler
from .test_chat import says
from .test_mesh import a_class, a_worker, traffic

# Texts that are shown with less contrast than WCAG 2.2 AA asks for: 4.5, or 3 for large ones.
PALE = """
const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
const rgba = (color) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = color;
  canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
};
const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a)];
const light = (rgb) => {
  const [r, g, b] = rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (element) => {
  const layers = [];
  for (let each = element; each; each = each.parentElement) layers.push(rgba(getComputedStyle(each).backgroundColor));
  return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
};
const pale = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
  if (!own || !element.checkVisibility() || element.closest(".unseen, :disabled, [aria-disabled]")) continue;
  const style = getComputedStyle(element);
  const below = ground(element);
  const ink = over(rgba(element instanceof SVGElement ? style.fill : style.color), below);
  const [high, low] = [light(ink), light(below)].sort((one, other) => other - one);
  const ratio = (high + 0.05) / (low + 0.05);
  const size = parseFloat(style.fontSize);
  const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  if (ratio < (large ? 3 : 4.5)) pale.push(`${ratio.toFixed(2)} ${element.outerHTML.slice(0, 120)}`);
}
return pale;
"""


@pytest.fixture
async def busy(page: Page, scheduler: WatchedScheduler) -> Page:
    """A page with something in both views."""
    workers = [a_worker("127.0.0.1:50053", 30), a_worker("b:1", 0, live=False)]
    scheduler.fleet = pb.Fleet(requests_running=2, workers=workers)
    scheduler.traffic = traffic(10, a_class("interactive", 4, 1, 100), a_class("batch", 0, 1, 0, QUEUE_FULL=2))
    code = f"```py\nprint('{'x' * 70}')\n```\n"
    scheduler.play = says(scheduler.model, "# Rivers\n\n- the **Rhine**\n- the `Elbe`\n\n> long\n\n", code)
    await page.ask("Name rivers. " + "unbreakable" * 5)
    await page.until_shown(".figures", "finished")
    return page


async def test_the_whole_page_works_with_keys_alone(page: Page, scheduler: WatchedScheduler) -> None:
    scheduler.play = says(scheduler.model, "hello", "never", then=asyncio.Event())
    # The question has the focus from the start.
    assert await page.focused() == "question"
    await page.press(*"Who is", "SHIFT+ENTER", *"there?", "ENTER")
    await page.until_shown(".answer .rich", "hello")
    assert await page.shown(".question p") == "Who is\nthere?"
    assert await page.focused() == "question"
    while await page.focused() != "stop":
        await page.press("TAB")
    await page.press("ENTER")
    await page.until_shown(".figures", "stopped")
    await asyncio.wait_for(scheduler.sequences[0].cancelled.wait(), 20)
    assert await page.focused() == "question"
    # From the top: past the link that skips, to the views.
    await page.run("document.activeElement.blur(); document.querySelector('.skip').focus()")
    assert await page.run("return document.querySelector('.skip').getBoundingClientRect().top >= 0")
    while await page.focused() != "Mesh":
        await page.press("TAB")
        outline = "return getComputedStyle(document.activeElement).outlineStyle"
        assert await page.run(outline) != "none", await page.focused()
    await page.press("ENTER")
    await page.until_shown("#mesh-data", "Workers live")
    assert await page.run("return document.title") == "Mesh · Tercet"
    assert await page.run("return document.querySelector('nav [aria-current]').innerText") == "Mesh"


async def test_dialog_and_settings_give_the_focus_back(page: Page) -> None:
    await page.click("#key-button")
    assert await page.focused() == "key"
    await page.press("ESCAPE")
    assert await page.focused() == "key-button"
    await page.resize(800)
    await page.until("return document.getElementById('panel').hidden")
    await page.click("#panel-button")
    assert await page.focused() == "model"
    await page.click("#panel-close")
    assert await page.focused() == "panel-button"
    assert await page.run("return document.getElementById('panel-button').ariaExpanded") == "false"


@pytest.mark.parametrize("view", ["chat", "mesh"])
async def test_everything_has_a_name(view: str, busy: Page) -> None:
    await busy.click(f"nav a[href='#{view}']")
    if view == "mesh":
        await busy.until_shown("#workers", "b:1")

    controls = "button, input, select, textarea, a, svg[role=img], [role=region], [role=log], [role=group], section"
    names = await busy.names(controls)
    assert len(names) > 8
    assert [html for html, name in names.items() if not name] == []
    ids = await busy.run("return [...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(ids) == len(set(ids))
    heads = "[...document.querySelectorAll('h1, h2, h3')].filter((each) => each.checkVisibility())"
    levels = await busy.run(f"return {heads}.map((each) => Number(each.tagName[1]))")
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_all_texts_stand_out(scheme: str, busy: Page) -> None:
    await busy.prefer(color_scheme=scheme)
    assert await busy.run(PALE) == []
    await busy.click("nav a[href='#mesh']")
    await busy.until_shown("#workers", "b:1")
    assert await busy.run(PALE) == []
    await busy.click("#key-button")
    assert await busy.run(PALE) == []
    await busy.press("ESCAPE")


async def test_nothing_moves_for_who_does_not_want_it(page: Page, scheduler: WatchedScheduler) -> None:
    scheduler.play = says(scheduler.model, "hello", "never", then=asyncio.Event())
    await page.ask("Go on for ever.")
    await page.until_shown(".answer .rich", "hello")
    moving = "return getComputedStyle(document.querySelector('.rich > :last-child'), '::after').animationName"
    assert await page.run(moving) == "blink"
    await page.prefer(reduced_motion="reduce")
    assert await page.run(moving) == "none"
    await page.click("#stop")
    await page.until_shown(".figures", "stopped")


@pytest.mark.parametrize("width", [360, 800, 1280])
async def test_there_is_room(width: int, busy: Page) -> None:
    await busy.resize(width, 640)
    for view in ("chat", "mesh"):
        await busy.click(f"nav a[href='#{view}']")
        if view == "mesh":
            await busy.until_shown("#workers", "b:1")
        assert await busy.run("return document.documentElement.scrollWidth") == width
        # What scrolls does so in itself.
        over = await busy.run(
            "const out = (each) => each.getBoundingClientRect().right > innerWidth + 1;"
            "const free = (each) => !each.closest('.scrolling, pre, .unseen, .skip');"
            "const seen = [...document.querySelectorAll('body *')].filter((each) => each.checkVisibility());"
            "return seen.filter((each) => free(each) && out(each)).map((each) => each.outerHTML.slice(0, 80));"
        )
        assert over == []
    await busy.click("nav a[href='#chat']")
    box = await busy.run("return document.getElementById('send').getBoundingClientRect().toJSON()")
    assert 0 < box["bottom"] <= 640
    if width < 960:
        await busy.click("#panel-button")
        await busy.fill("#temperature", "0.5")
        await busy.click("#panel-close")
    await busy.click("#clear")
    await busy.ask("More.")
    await busy.until_shown(".figures", "finished")


async def test_a_long_answer_is_followed_until_the_reader_scrolls(page: Page, scheduler: WatchedScheduler) -> None:
    go_on = asyncio.Event()
    lines = "x\n\n" * 60
    scheduler.play = says(scheduler.model, lines, "end", then=go_on)
    await page.ask("Go on.")
    at = "const box = document.getElementById('scroll'); return box.scrollHeight - box.scrollTop - box.clientHeight"
    await page.until("return document.querySelectorAll('.rich p').length > 50")
    await page.until(f"{at} < 2")
    await page.run("document.getElementById('scroll').scrollTop = 0")
    go_on.set()
    await page.until_shown(".figures", "finished")
    await page.run("return new Promise(requestAnimationFrame)")
    assert await page.run("return document.getElementById('scroll').scrollTop") == 0
