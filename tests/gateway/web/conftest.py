"""A gateway with a console before a scheduler whose tokens and traffic a test decides, and a browser."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest

from gateway.http.web import FOLDER
from gateway.served_model import ServedModel
from tercet import rpc
from tercet.ports import free_ports
from tercet.v1 import operations_pb2 as pb

from ..conftest import FakeScheduler
from . import browser
from .browser import Page


class WatchedScheduler(FakeScheduler):
    """Tells of a fleet and of traffic that a test made up. `grow` gets each of them before it is told."""

    def __init__(self, model: ServedModel) -> None:
        super().__init__(model)
        self.fleet = pb.Fleet()
        self.traffic = pb.Traffic(epoch=1, uptime_seconds=1)
        self.grow: Callable[[pb.Fleet | pb.Traffic], None] = lambda _: None

    async def GetFleet(self, request: Any, context: Any) -> pb.Fleet:
        self.grow(self.fleet)
        return self.fleet

    async def GetTraffic(self, request: Any, context: Any) -> pb.Traffic:
        if self.traffic_failure is not None:
            await rpc.abort(context, self.traffic_failure)
        self.grow(self.traffic)
        return self.traffic


@pytest.fixture
async def scheduler(model: ServedModel) -> AsyncIterator[WatchedScheduler]:
    fake = WatchedScheduler(model)
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
def http_port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def settings(http_port: int) -> dict[str, Any]:
    return {"http_port": http_port}


@pytest.fixture(scope="session")
def chromium() -> Iterator[str]:
    """The URL of a browser's session."""
    with browser.chromium() as session:
        if session is None:
            pytest.skip(browser.MISSING)
        yield session


@pytest.fixture(scope="session")
def empty_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server that has the console's modules, and a page that uses none."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "index.html").write_text("<!doctype html><title>Modules</title>", encoding="utf-8")
    (folder / "console").symlink_to(FOLDER)
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def complaints() -> list[str]:
    """Patterns of what the browser's console may say in this test; all else fails it."""
    return []


@contextlib.asynccontextmanager
async def fresh_page(chromium: str, port: int, complaints: list[str]) -> AsyncIterator[Page]:
    """A page as nobody has seen it before: its port is its own, and so are its stores."""
    async with httpx2.AsyncClient(base_url=chromium, timeout=60) as http:
        page = Page(http, f"http://127.0.0.1:{port}")
        await page.resize(1280)
        await page.prefer()
        await page.complaints()
        yield page
        said = await page.complaints(complaints)
        # So that its connections end before the gateway does.
        await page.leave()
        assert said == []


@pytest.fixture
async def modules(chromium: str, empty_page: int) -> AsyncIterator[Page]:
    """A page in which tests can import what the console is made of, without a gateway."""
    async with fresh_page(chromium, empty_page, ["favicon"]) as made:
        await made.visit()
        yield made


@pytest.fixture
async def page(chromium: str, gateway: Any, http_port: int, complaints: list[str]) -> AsyncIterator[Page]:
    """The console, open."""
    async with fresh_page(chromium, http_port, complaints) as made:
        await made.open()
        yield made
