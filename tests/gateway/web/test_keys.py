"""A console whose gateway asks for keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ..guarded_gateway import GuardedGateway, guarded_gateway
from .browser import Page
from .conftest import WatchedScheduler, fresh_page


@pytest.fixture
async def guarded(
    scheduler: WatchedScheduler, model_path: Path, tmp_path: Path, http_port: int
) -> AsyncIterator[GuardedGateway]:
    async with guarded_gateway(scheduler, model_path, tmp_path / "tenants.db", http_port) as running:
        yield running


@pytest.fixture
async def page(chromium: str, guarded: GuardedGateway, http_port: int) -> AsyncIterator[Page]:
    # Chromium notes each answer of that kind; the page shows them.
    async with fresh_page(chromium, http_port, ["the server responded with a status of 40[13]"]) as made:
        await made.open()
        yield made


async def give(page: Page, text: str) -> None:
    await page.until("return document.getElementById('key-dialog').open")
    await page.fill("#key", text)
    await page.press("ENTER")


async def test_nothing_is_shown_without_a_key(page: Page, guarded: GuardedGateway) -> None:
    await page.until("return document.getElementById('key-dialog').open")
    assert await page.run("return document.querySelectorAll('#model option').length") == 0
    await give(page, "tct_wrong")
    await page.until_shown("#key-problem", "valid key")
    await give(page, "schlüssel")
    await page.until_shown("#key-problem", "ASCII")
    await give(page, guarded.keys["alice"].text)
    await page.until("return document.querySelectorAll('#model option').length === 1")
    await page.ask("hello")
    await page.until_shown(".figures", "finished")
    assert guarded.scheduler.sequences[0].submit.tenant_id == "alice"


async def test_a_key_lives_as_long_as_its_tab(page: Page, guarded: GuardedGateway) -> None:
    key = guarded.keys["alice"].text
    await give(page, key)
    await page.until("return document.querySelectorAll('#model option').length === 1")
    assert await page.run("return Object.values(sessionStorage)") == [key]
    assert await page.run("return [localStorage.length, document.cookie]") == [0, ""]
    assert key not in await page.run("return location.href")
    await page.reload()
    await page.until("return document.querySelectorAll('#model option').length === 1")
    await page.click("#key-button")
    await give(page, " ")
    await page.until("return sessionStorage.length === 0")
    await page.until("return document.getElementById('key-dialog').open")


async def test_the_mesh_is_an_operators(page: Page, guarded: GuardedGateway) -> None:
    await give(page, guarded.keys["alice"].text)
    await page.until("return document.querySelectorAll('#model option').length === 1")
    await page.click("nav a[href='#mesh']")
    await page.until_shown("#mesh-problem", "needs the key of an operator")
    assert await page.run("return document.getElementById('mesh-data').hidden")
    await page.click("#mesh-key")
    await give(page, guarded.keys["boss"].text)
    await page.until_shown("#mesh-data", "Workers live")
    assert await page.run("return document.getElementById('mesh-problem').hidden")
