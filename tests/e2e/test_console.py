"""The console before a real mesh: a chat, a stop that frees what it held, and the mesh while it works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest

from ..gateway.web import browser
from .conftest import Mesh, free_port

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def chromium() -> Iterator[str]:
    with browser.chromium() as session:
        if session is None:
            pytest.skip(browser.MISSING)
        yield session


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def mesh(chromium: str, tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Mesh]:
    running = Mesh(tmp_path_factory.mktemp("console"), {"TERCET_GATEWAY_HTTP_PORT": str(port)})
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture
async def page(chromium: str, mesh: Mesh, port: int) -> AsyncIterator[browser.Page]:
    async with httpx2.AsyncClient(base_url=chromium, timeout=60) as http:
        page = browser.Page(http, f"http://127.0.0.1:{port}")
        await page.resize(1280)
        await page.complaints()
        await page.open()
        yield page
        assert await page.complaints() == []
        await page.leave()


async def test_an_answer_of_the_model(page: browser.Page, mesh: Mesh) -> None:
    for name, value in {"temperature": "0", "max_tokens": "24"}.items():
        await page.fill(f"#{name}", value)
    await page.ask("What is the capital of France?")
    figures = await page.until_shown(".figures", "prompt")
    assert "first token" in figures
    assert "Paris" in await page.shown(".answer .rich")
    await asyncio.to_thread(mesh.wait_idle)


async def test_a_stop_frees_the_mesh(page: browser.Page, mesh: Mesh) -> None:
    await page.fill("#system", "Never stop.")
    await page.ask("Tell me a very long story about a river, and all that it passes.")
    await page.until_shown(".figures", "tokens/s")
    await page.click("#stop")
    await page.until_shown(".figures", "stopped")
    # Long before the story could have ended: its context has room for thousands of tokens.
    await asyncio.to_thread(mesh.wait_idle)
    [ended] = [each for each in mesh.records("gateway", "request_ended") if each["outcome"] == "cancelled"]
    assert ended["client_gone"]
    assert ended["completion_tokens"] < 1000


async def test_the_mesh_is_seen_at_work(page: browser.Page, mesh: Mesh) -> None:
    await page.ask("Tell me a very long story about a river, and all that it passes.")
    await page.until_shown(".figures", "tokens/s")
    await page.click("nav a[href='#mesh']")
    await page.until_shown("#tile-running", "1")
    await page.until("return parseFloat(document.getElementById('tile-tokens').innerText) > 0")
    assert await page.shown("#tile-workers") == "1 of 1"
    assert "live" in await page.shown("#workers")
    await page.press("ESCAPE")
    await page.until_shown("#tile-running", "0")
    await asyncio.to_thread(mesh.wait_idle)
