"""Cancelled work stops costing."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from tercet import errors
from tercet.client import Accepted, Client, Delta

from .conftest import Mesh

pytestmark = pytest.mark.e2e


def _rss_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def test_cancel_before_the_first_token(mesh: Mesh, client: Client) -> None:
    prompt = " ".join(f"word{number}" for number in range(1200))
    async with client.generate(prompt, max_tokens=64) as generation:
        async for event in generation:
            assert isinstance(event, Accepted)
            break
    mesh.wait_idle()


async def test_cancel_in_mid_generation(mesh: Mesh, client: Client) -> None:
    deltas = 0
    async with client.generate("Once upon a time", max_tokens=2000, ignore_eos=True) as generation:
        async for event in generation:
            deltas += isinstance(event, Delta)
            if deltas == 5:
                break
    mesh.wait_idle()
    for name in ("gateway", "scheduler", "worker"):
        assert "cancel" in mesh.log_events(name)


async def test_deadline(mesh: Mesh, client: Client) -> None:
    with pytest.raises(errors.DeadlineError):
        await client.generate("Once upon a time", max_tokens=4000, ignore_eos=True, timeout_s=0.7).answer()
    mesh.wait_idle()


async def test_an_operator_cancels(mesh: Mesh, client: Client) -> None:
    generation = client.generate("Once upon a time", max_tokens=4000, ignore_eos=True, request_id="by-operator")
    with pytest.raises(errors.RequestCancelledError):
        async for event in generation:
            if isinstance(event, Accepted):
                assert await client.cancel("by-operator")
    assert not await client.cancel("by-operator")
    mesh.wait_idle()


async def test_a_thousand_cancelled_requests_leave_nothing(own_mesh: Callable[..., Mesh]) -> None:
    mesh = own_mesh()
    mesh.start()

    async def cancelled_after(client: Client, number: int) -> None:
        prompt = f"Story number {number}: once upon a time, " + "far away, " * (number % 40)
        seen = 0
        async with client.generate(prompt, max_tokens=500, ignore_eos=True) as generation:
            async for _ in generation:
                seen += 1
                if seen > number % 4:
                    break

    async def storm(client: Client, count: int) -> None:
        gate = asyncio.Semaphore(32)

        async def one(number: int) -> None:
            async with gate:
                await cancelled_after(client, number)

        await asyncio.gather(*(one(number) for number in range(count)))

    async with Client(mesh.address) as client:
        await storm(client, 200)  # allocators and caches reach their size
        mesh.wait_idle()
        before = {name: _rss_bytes(mesh.pid(name)) for name in ("gateway", "scheduler", "worker")}
        await storm(client, 1000)
        mesh.wait_idle()
        fleet = await client.fleet()
        answer = await client.generate_once("Once", temperature=0.0, max_tokens=4, ignore_eos=True)
    assert sum(worker.blocks_used for worker in fleet.workers) == 0
    assert len(answer.token_ids) == 4
    for name, size in before.items():
        # The KV cache is touched for the first time as it fills; nothing else may grow.
        allowed = (128 << 20 if name == "worker" else 0) + (24 << 20)
        assert _rss_bytes(mesh.pid(name)) - size < allowed, name
