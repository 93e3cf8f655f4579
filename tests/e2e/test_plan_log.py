"""The flight recorder of a mesh of real processes, read and replayed by the commands."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tercet.client import AsyncClient

from .conftest import ROOT, Mesh

pytestmark = pytest.mark.e2e

PROMPT = "The sphinx of black quartz judges my vow."


def tercet(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tercet", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


async def dump_while_busy(mesh: Mesh, file: Path) -> subprocess.CompletedProcess[str]:
    """Dumps when one of several requests has ended, another one is being cancelled, and the others run."""
    async with AsyncClient(mesh.address) as client:
        requests = [
            asyncio.create_task(client.generate_once(f"{PROMPT} {number}", max_tokens=24, seed=number, ignore_eos=True))
            for number in range(6)
        ]
        await requests[0]
        requests[1].cancel()
        dumped = await asyncio.to_thread(tercet, "dump-plans", str(file), "--address", mesh.address)
        await asyncio.gather(*requests, return_exceptions=True)
    return dumped


def test_a_mesh_is_dumped_and_replayed(mesh: Mesh, tmp_path: Path) -> None:
    file = tmp_path / "plans.jsonl"
    dumped = asyncio.run(dump_while_busy(mesh, file))
    assert dumped.returncode == 0, dumped.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["plans.jsonl"]
    text = file.read_text()
    assert "sphinx" not in text

    replayed = tercet("replay-plans", str(file), "--json")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    facts = json.loads(replayed.stdout)
    assert facts["equal"]
    assert facts["plans"] >= 6
    assert facts["rounds"] == facts["rounds_recorded"] > 0

    shown = tercet("replay-plans", str(file), "--show").stdout.splitlines()
    assert any("prompt of" in line for line in shown)
    assert any("of plan" in line for line in shown)
    assert shown[-1] == "every decision is the same"

    piped = subprocess.run(
        f"{sys.executable} -m tercet dump-plans - --address {mesh.address} | {sys.executable} -m tercet replay-plans -",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert piped.returncode == 0, piped.stderr
    assert piped.stdout.endswith("every decision is the same\n")
    mesh.wait_idle()


def test_it_can_be_switched_off(own_mesh: Callable[..., Mesh], tmp_path: Path) -> None:
    off = own_mesh(TERCET_SCHEDULER_PLAN_LOG_ROUNDS="0")
    off.start()
    file = tmp_path / "plans.jsonl"
    file.write_text("as it was")
    done = tercet("dump-plans", str(file), "--address", off.address)
    assert done.returncode == 1
    assert done.stderr == "tercet: SWITCHED_OFF: the plan log is off; scheduler.plan_log_rounds turns it on\n"
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["plans.jsonl"]
    assert file.read_text() == "as it was"
