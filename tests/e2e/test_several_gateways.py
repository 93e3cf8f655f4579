"""Gateways that share a port: each connection is one's, and one that dies is replaced by the others."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tercet.cli.demo import private
from tercet.client import AsyncClient
from tercet.config import load_config
from tercet.errors import RequestError
from tercet.mesh_processes import MeshProcesses, ServiceStatus

pytestmark = pytest.mark.e2e

SETTINGS = {"worker.kv_cache_memory": "192MiB", "scheduler.admission_mode": "off"}


async def ask(address: str) -> int:
    """On a connection of its own. How many tokens came."""
    async with AsyncClient(address) as client:
        answer = await client.generate_once("Once", temperature=0.0, max_tokens=3, ignore_eos=True, timeout_s=60)
    return len(answer.token_ids)


async def test_one_of_two_gateways_may_die(tmp_path: Path) -> None:
    seen: list[ServiceStatus] = []
    config = private(load_config(flags=SETTINGS))
    mesh = MeshProcesses(config, on_change=seen.append, num_gateways=2, log_dir=tmp_path, start_timeout_s=120)
    async with mesh:
        assert await asyncio.gather(*(ask(mesh.address) for _ in range(12))) == [3] * 12
        finished = [(tmp_path / f"gateway-{n}.log").read_text().count("request_ended") for n in (1, 2)]
        assert sum(finished) == 12
        assert min(finished) > 0
        os.kill(next(status.pid for status in seen if status.name == "gateway-1"), signal.SIGKILL)
        # The kernel knows at once; a connection that it had given to the dead one is refused.
        answers = await asyncio.gather(*(ask(mesh.address) for _ in range(8)), return_exceptions=True)
        assert answers.count(3) >= 1
        assert all(answer == 3 or isinstance(answer, RequestError) for answer in answers)
        assert await ask(mesh.address) == 3
