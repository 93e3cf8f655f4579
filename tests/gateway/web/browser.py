"""Chromium as a user has it: keys, clicks, and what the page shows then. Over WebDriver, which is JSON over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx2

# For what a page needs to show something on a busy machine; no test waits for that long otherwise.
PATIENCE_S = 30.0
MISSING = "needs Chromium and its driver (Debian: chromium, chromium-driver)"

_ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"]
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
# As the protocol numbers them.
_KEYS = {"TAB": "\ue004", "ENTER": "\ue007", "SHIFT": "\ue008", "ESCAPE": "\ue00c"}


@contextlib.contextmanager
def chromium() -> Iterator[str | None]:
    """Starts a browser without a screen, and gives the URL of its session; None where there is none."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        yield None
        return
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen([driver, "--port=0"], stdout=pipe, stderr=nowhere, text=True) as process:
        try:
            assert process.stdout is not None
            port = next(found[1] for line in process.stdout if (found := re.search(r"on port (\d+)\.", line)))
            wanted = {
                "goog:chromeOptions": {"binary": browser, "args": _ARGUMENTS},
                "goog:loggingPrefs": {"browser": "ALL"},
                "timeouts": {"script": int(PATIENCE_S * 1000)},
            }
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
                answer = http.post("/session", json={"capabilities": {"alwaysMatch": wanted}})
                session = f"/session/{_value(answer)['sessionId']}"
                yield f"http://127.0.0.1:{port}{session}"
                http.delete(session)
        finally:
            process.terminate()


class Page:
    """The console of the gateway at `url`; `http` goes to the browser's session."""

    def __init__(self, http: httpx2.AsyncClient, url: str) -> None:
        self._http = http
        self.url = url

    async def open(self, view: str = "chat") -> None:
        """Loads the page, as far as its modules have run and shown something."""
        await self.leave()
        await self.visit(f"#{view}")
        await self.until(f"return document.title && !document.getElementById('{view}-view').hidden")

    async def visit(self, path: str = "") -> None:
        """Loads what is at a path."""
        await self._post("/url", url=f"{self.url}/{path}")

    async def leave(self) -> None:
        """Closes the page."""
        await self._post("/url", url="about:blank")

    async def reload(self) -> None:
        """The same page once more."""
        await self._post("/refresh")

    async def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns; it is awaited if that is a promise."""
        return await self._post("/execute/sync", script=script, args=arguments)

    async def until(self, script: str, *arguments: Any) -> Any:
        """Waits until a script returns something true, and returns that."""
        give_up = time.monotonic() + PATIENCE_S
        while not (found := await self.run(script, *arguments)):
            if time.monotonic() > give_up:
                shown = await self.run("return document.body.innerText")
                raise AssertionError(f"never: {script} {arguments}; the page shows:\n{shown}")
            await asyncio.sleep(0.02)
        return found

    async def until_shown(self, selector: str, text: str) -> str:
        """Waits until something visible has this text in it, and returns all that it shows."""
        script = (
            "const found = [...document.querySelectorAll(arguments[0])]"
            ".find((each) => each.checkVisibility() && each.innerText.includes(arguments[1]));"
            "return found?.innerText;"
        )
        return str(await self.until(script, selector, text))

    async def shown(self, selector: str) -> str:
        """What an element shows."""
        return str(await self.run("return document.querySelector(arguments[0]).innerText", selector))

    async def click(self, selector: str) -> None:
        """As with a mouse: what is covered or hidden cannot be clicked."""
        await self._post(f"{await self._find(selector)}/click")

    async def fill(self, selector: str, text: str) -> None:
        """Types into a field, instead of what is there."""
        field = await self._find(selector)
        await self._post(f"{field}/clear")
        await self._post(f"{field}/value", text=text)

    async def choose(self, selector: str, label: str) -> None:
        """One of a list's."""
        options = await self._find_all(f"{selector} option")
        texts = [await self._get(f"{option}/text") for option in options]
        await self._post(f"{options[texts.index(label)]}/click")

    async def press(self, *keys: str) -> None:
        """Keys, one after the other, to whatever has the focus: characters, TAB, ENTER, ESCAPE, SHIFT+ENTER."""
        strokes: list[Mapping[str, str]] = []
        for key in keys:
            held, _, last = key.rpartition("+") if len(key) > 1 else ("", "", key)
            names = [_KEYS.get(name, name) for name in (held, last) if name]
            strokes += [{"type": "keyDown", "value": name} for name in names]
            strokes += [{"type": "keyUp", "value": name} for name in reversed(names)]
        await self._post("/actions", actions=[{"type": "key", "id": "keyboard", "actions": strokes}])

    async def focused(self) -> str:
        """The id, or else the text, of what has the focus."""
        return str(await self.run("const it = document.activeElement; return it.id || it.innerText || it.tagName"))

    async def names(self, selector: str) -> dict[str, str]:
        """What those who hear the page are told that each of the visible elements is, by the beginning of its HTML."""
        visible = [each for each in await self._find_all(selector) if await self._get(f"{each}/displayed")]
        html = [str(await self._get(f"{each}/property/outerHTML"))[:120] for each in visible]
        return dict(zip(html, [await self._get(f"{each}/computedlabel") for each in visible], strict=True))

    async def ask(self, question: str) -> None:
        """Types a question and sends it."""
        await self.fill("#question", question)
        await self.click("#send")

    async def resize(self, width: int, height: int = 900) -> None:
        """The part of the window that shows the page, in CSS pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.command("Emulation.setDeviceMetricsOverride", metrics)

    async def prefer(self, **features: str) -> None:
        """What the user's system says: color_scheme="dark", reduced_motion="reduce"."""
        wanted = [{"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()]
        await self.command("Emulation.setEmulatedMedia", {"features": wanted})

    async def command(self, name: str, parameters: Mapping[str, Any]) -> Any:
        """One of the protocol that Chromium's own tools speak."""
        return await self._post("/goog/cdp/execute", cmd=name, params=parameters)

    async def complaints(self, expected: Sequence[str] = ()) -> list[str]:
        """What the browser's console has said since it was asked last, but for what matches."""
        said = [entry["message"] for entry in await self._post("/se/log", type="browser")]
        return [each for each in said if not any(re.search(pattern, each) for pattern in expected)]

    async def _find(self, selector: str) -> str:
        found = await self._post("/element", using="css selector", value=selector)
        return f"/element/{found[_ELEMENT]}"

    async def _find_all(self, selector: str) -> list[str]:
        found = await self._post("/elements", using="css selector", value=selector)
        return [f"/element/{each[_ELEMENT]}" for each in found]

    async def _get(self, path: str) -> Any:
        return _value(await self._http.get(path))

    async def _post(self, path: str, **body: Any) -> Any:
        return _value(await self._http.post(path, json=body))


def _value(answer: httpx2.Response) -> Any:
    value = answer.json()["value"]
    if isinstance(value, dict) and "error" in value and "stacktrace" in value:
        raise AssertionError(f"{value['error']}: {value['message']}")
    return value
