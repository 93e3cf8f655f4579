"""Several processes of the client send together what one would, and one that fails is told."""

from __future__ import annotations

from typing import Any

import pytest

from tercet.errors import LoadError
from tercet.load.endpoint import Endpoint
from tercet.load.other_processes import OtherProcesses
from tercet.load.runner import run
from tercet.load.workload import Workload
from tests.load.fake_servers import Gateway, gateway
from tests.load.scripted import Script
from tests.load.wire import Wire


def asked(served: Gateway) -> list[tuple[list[int], int]]:
    return sorted((list(request.token_ids.ids), request.stop.max_tokens) for request in served.requests)


async def test_they_send_what_one_would() -> None:
    options: dict[str, Any] = {"input": "short", "output": "uniform:2-5", "arrivals": "at-once", "requests": 24}
    async with gateway(Wire(lambda number: Script(0.0, 0.0))) as (alone, address):
        await run(Workload(**options), Endpoint(address))
    async with gateway(Wire(lambda number: Script(0.0, 0.0))) as (served, address):
        result = await run(Workload(**options), Endpoint(address), processes=3)
    assert asked(served) == asked(alone)
    assert [row.index for row in result.rows] == list(range(24))
    assert {row.outcome for row in result.rows} == {"completed"}
    (point,) = result.summary.points
    assert point.gap_ms is not None
    assert point.gap_ms.count == sum(row.max_tokens - 1 for row in result.rows)
    last = result.samples[-1].client
    assert (last.sent, last.finished, last.running) == (24, 24, 0)


async def test_one_that_cannot_begin_ends_the_run() -> None:
    async with OtherProcesses(Workload(requests=1), Endpoint("127.0.0.1:1"), 1) as others:
        others.begin(0, {})
        with pytest.raises(LoadError, match="does not say what it serves"):
            await others.start()
