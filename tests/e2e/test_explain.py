"""Where the time of requests went that a mesh of real processes has served, from its ledger and its plan log."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tercet.client import AsyncClient
from tercet.messages import Accepted

from .conftest import ROOT, Mesh, wait_until

pytestmark = pytest.mark.e2e


class Explained:
    """A mesh with a ledger and place for one sequence; `of` runs `tercet explain`."""

    def __init__(self, mesh: Mesh, database: Path) -> None:
        self.mesh = mesh
        self._database = database

    def of(self, request_id: str, *arguments: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "tercet", "explain", request_id, "--json", "--address", self.mesh.address]
        done = subprocess.run(
            [*command, "--ledger-database", str(self._database), *arguments],
            capture_output=True, text=True, timeout=120, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def ended(self, request_id: str) -> dict[str, Any]:
        """Once its last row is written."""
        found: list[dict[str, Any]] = []

        def closed() -> bool:
            found.append(self.of(request_id))
            return found[-1]["row"] is not None and not found[-1]["running"]

        wait_until(closed, f"the row of {request_id} is closed; logs:\n{self.mesh.logs()}")
        return found[-1]


@pytest.fixture
def explained(own_mesh: Callable[..., Mesh], tmp_path: Path) -> Explained:
    path = tmp_path / "ledger.db"
    mesh = own_mesh(TERCET_LEDGER_DATABASE=str(path), TERCET_WORKER_MAX_NUM_SEQS="1", TERCET_COSTS_CPU_HOUR_PRICE="36")
    mesh.start()
    return Explained(mesh, path)


async def served_cancelled_and_waiting(explained: Explained) -> dict[str, Any]:
    """What is said while the first of three runs; the second waits for it, the third leaves."""
    async with AsyncClient(explained.mesh.address) as client:
        started = asyncio.Event()

        async def ask(request_id: str, max_tokens: int) -> None:
            options: dict[str, Any] = {"request_id": request_id, "ignore_eos": True, "max_tokens": max_tokens}
            async with client.generate("Once upon a time there was", **options) as events:
                async for event in events:
                    if not isinstance(event, Accepted):
                        started.set()

        first = asyncio.create_task(ask("first", 120))
        await started.wait()
        others = [asyncio.create_task(ask(request_id, 4)) for request_id in ("second", "third")]
        await asyncio.to_thread(wait_until, lambda: explained.mesh.fleet().requests_waiting == 2, "two wait")
        others[1].cancel()
        running = await asyncio.to_thread(explained.of, "first")
        await asyncio.gather(first, *others, return_exceptions=True)
        return running


def test_where_the_time_of_three_requests_went(explained: Explained) -> None:
    running = asyncio.run(served_cancelled_and_waiting(explained))
    # It is told while it runs, unless it was too fast for that.
    assert running["row"]["outcome"] in ("open", "completed")
    assert running["stories"][0]["outputs"][0]["tokens"] > 0

    found = {request_id: explained.ended(request_id) for request_id in ("first", "second", "third")}
    for each in found.values():
        assert each["missing"] == []
        assert not each["at_scheduler"]
        stages = {stage["name"]: stage["seconds"] for stage in each["stages"]}
        assert sum(stages.values()) == pytest.approx(each["total_s"], abs=1e-6)
        assert all(seconds >= 0 for seconds in stages.values())
        for stage in each["stages"]:
            parts = sum(part["seconds"] for part in stage["parts"])
            assert parts == pytest.approx(stage["seconds"], rel=0.021, abs=1e-6)
    assert "120 tokens were generated" in found["first"]["headline"]
    # It generated for as long as the others waited.
    assert "waited for a slot on a worker, with 1 sequence running before it" in found["second"]["headline"]
    assert found["third"]["headline"].startswith("cancelled (client, in the queue) after ")
    row = found["first"]["row"]
    assert row["cpu_s"] == row["gpu_s"] > 0
    assert row["cost"] == pytest.approx(row["gpu_s"] * 0.01)
    assert found["third"]["row"]["cost"] == 0
