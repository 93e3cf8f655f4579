"""tercet top and three real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tercet.client import AsyncClient, Delta
from tercet.errors import InvalidFieldError

from .conftest import ROOT, Mesh

pytestmark = pytest.mark.e2e


def top(mesh: Mesh, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tercet", "top", "--address", mesh.address, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=True)


def class_of(told: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in told["traffic"]["classes"] if each["name"] == name]
    return dict(found)


async def test_it_shows_what_was_asked_and_what_was_made_of_it(mesh: Mesh, client: AsyncClient) -> None:
    mesh.wait_idle()
    before = class_of(json.loads(top(mesh, "--once", "--json").stdout), "rag")
    options = {"traffic_class": "rag", "max_tokens": 12, "ignore_eos": True}
    for _ in range(3):
        await client.generate("Once upon a time", **options).answer()
    async with client.generate("Once upon a time", **{**options, "max_tokens": 500}) as generation:
        async for event in generation:
            if isinstance(event, Delta):
                break
    mesh.wait_idle()
    with pytest.raises(InvalidFieldError):
        await client.generate("Once upon a time", traffic_class="none").answer()
    told = json.loads(top(mesh, "--once", "--json").stdout)
    after = class_of(told, "rag")
    counts = {name: after["counts"][name] - before["counts"][name] for name in ("accepted", "served", "cancelled")}
    assert counts == {"accepted": 4, "served": 3, "cancelled": 1}
    assert after["counts"]["generated_tokens"] - before["counts"]["generated_tokens"] > 3 * 12
    assert after["ttft"]["count"] >= 4
    assert 0 < after["ttft"]["p50_s"] <= after["ttft"]["p95_s"] < 60
    assert after["load"]["requests_running"] == after["load"]["kv_blocks"] == 0
    assert "INVALID_FIELD" in class_of(told, "")["counts"]["refused"]
    assert [each["tenant"] for each in told["traffic"]["tenants"] if each["traffic_class"] == "rag"] == [""]
    picture = top(mesh, "--once").stdout
    assert "1/1 workers" in picture
    assert "rag" in picture
    # Where nobody keeps tenants, nobody is told of them.
    assert "tenant" not in picture
