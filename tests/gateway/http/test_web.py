"""The console's files and data over plain HTTP."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.http.web import FOLDER, read_files
from tercet import __version__
from tercet.tenants.plan import TenantPlan

from ..guarded_gateway import GuardedGateway, guarded_gateway

FILES = read_files(FOLDER)


async def test_every_file_is_there_and_kept_until_it_changes(http: httpx2.AsyncClient) -> None:
    assert {"/", "/console/main.js", "/console/console.css", "/console/icon.svg"} <= FILES.keys()
    assert {path.name for path in FOLDER.iterdir()} == {Path(path).name or "index.html" for path in FILES}
    for path, file in FILES.items():
        answer = await http.get(path)
        assert (answer.status_code, answer.content) == (200, file.body), path
        assert answer.headers["content-type"] == file.kind
        assert answer.headers["cache-control"] == "no-cache"
        tag = answer.headers["etag"]
        for known in (tag, f'"other", W/{tag}'):
            again = await http.get(path, headers={"if-none-match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert (await http.get(path, headers={"if-none-match": '"other"'})).status_code == 200
        head = await http.head(path)
        assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(file.body)))
    assert len({file.tag for file in FILES.values()}) == len(FILES)


async def test_the_page_can_neither_be_framed_nor_reach_others(http: httpx2.AsyncClient) -> None:
    for path in FILES:
        headers = (await http.get(path)).headers
        policy = dict(each.strip().partition(" ")[::2] for each in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert {policy[f"{kind}-src"] for kind in ("script", "style", "img", "connect")} == {"'self'"}
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_nothing_comes_from_elsewhere() -> None:
    for path, file in FILES.items():
        text = file.body.decode()
        links = re.findall(r"https?://[^\s\"'`)]+", text)
        assert set(links) <= {"http://www.w3.org/2000/svg"}, path
        for name in re.findall(r"(?:src|href)=\"([^\"#]+)\"", text):
            assert f"/{name}" in FILES, name
        for name in re.findall(r"from \"\./([^\"]+)\"", text):
            assert f"/console/{name}" in FILES, name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|\bstyle=", text), path


@pytest.mark.parametrize("path", ["/console", "/console/", "/console/none.js", "/console/../server.py", "/index.html"])
async def test_what_is_not_there_is_not_found(http: httpx2.AsyncClient, path: str) -> None:
    answer = await http.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_files_are_only_read(http: httpx2.AsyncClient) -> None:
    assert (await http.post("/", json={})).status_code == 405


async def test_what_the_page_is_told(http: httpx2.AsyncClient, scheduler: Any) -> None:
    about = await http.get("/console/about")
    assert about.json() == {"version": __version__, "classes": ["interactive", "rag", "batch"]}
    assert about.headers["cache-control"] == "no-store"
    mesh = (await http.get("/console/mesh")).json()
    assert mesh["fleet"] == {
        "requests_waiting": 0, "requests_running": 0, "requests_finished": 0, "preemptions": 0, "workers": [],
        "swaps": 0, "requests_paused": 0,
    }  # fmt: skip
    assert (mesh["traffic"]["epoch"], mesh["traffic"]["uptime_s"], mesh["traffic"]["classes"]) == (1, 2.5, [])


class TestOff:
    @pytest.fixture
    def settings(self, http_port: int) -> dict[str, Any]:
        return {"http_port": http_port, "web": False}

    async def test_a_gateway_without_a_console_has_the_rest(self, http: httpx2.AsyncClient) -> None:
        for path in ("/", "/console/main.js", "/console/about", "/console/mesh"):
            assert (await http.get(path)).status_code == 404
        assert (await http.get("/v1/models")).status_code == 200


class TestKeys:
    @pytest.fixture
    async def guarded(
        self, scheduler: Any, model_path: Path, tmp_path: Path, http_port: int
    ) -> AsyncIterator[GuardedGateway]:
        async with guarded_gateway(scheduler, model_path, tmp_path / "tenants.db", http_port) as running:
            yield running

    async def test_files_are_for_all_and_data_for_who_may_see_it(self, guarded: GuardedGateway, http_port: int) -> None:
        plan = TenantPlan(classes=("batch",))
        keys = {"nobody": "", "batcher": guarded.store.add("batcher", plan, operator=False).text}
        keys |= {name: key.text for name, key in guarded.keys.items()}
        await guarded.until_seen()
        seen = {}
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{http_port}", timeout=30) as http:
            for name, key in keys.items():
                headers = {"authorization": f"Bearer {key}"} if key else {}
                answers = [await http.get(path, headers=headers) for path in ("/", "/console/about", "/console/mesh")]
                seen[name] = [answer.status_code for answer in answers]
                if name in ("batcher", "bob"):
                    classes = answers[1].json()["classes"]
                    assert classes == (["batch"] if name == "batcher" else ["interactive", "rag", "batch"])
        assert seen == {
            "nobody": [200, 401, 401],
            "alice": [200, 200, 403],
            "bob": [200, 200, 403],
            "batcher": [200, 200, 403],
            "boss": [200, 200, 200],
        }
