"""Two schedulers on one worker, by mistake or in a hand-over: no tug of war."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tercet.client import AsyncClient

from .conftest import Mesh, wait_until

pytestmark = pytest.mark.e2e


async def test_the_later_one_stays_and_the_earlier_one_waits_its_turn(own_mesh: Callable[..., Mesh]) -> None:
    first = own_mesh()
    first.start()
    second = own_mesh(TERCET_SCHEDULER_WORKERS=f"127.0.0.1:{first.ports['worker']}")
    second.start("scheduler", "gateway")
    wait_until(lambda: second.healthy("gateway"), "the later scheduler has the worker")
    wait_until(lambda: not first.healthy("gateway"), "the earlier one knows that it has none")
    async with AsyncClient(second.address) as client:
        answers = [
            await client.generate_once("Once", temperature=0.0, max_tokens=20, ignore_eos=True) for _ in range(8)
        ]
    assert [len(answer.token_ids) for answer in answers] == [20] * 8
    assert len(first.records("worker", "scheduler_attached")) == 2
    second.kill("scheduler")
    wait_until(lambda: first.healthy("gateway"), "the earlier one has it back")
    async with AsyncClient(first.address) as client:
        answer = await client.generate_once("Once", temperature=0.0, max_tokens=4, ignore_eos=True)
    assert len(answer.token_ids) == 4
    first.wait_idle()
