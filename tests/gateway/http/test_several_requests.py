"""What a plan never allows the prompts of one call together is refused at once, and nothing of it is submitted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.caller import Caller
from gateway.http.several_requests import SeveralRequests, check_count
from tercet.errors import TenantQuotaError
from tercet.tenants.plan import TenantPlan, most_at_once

from ..guarded_gateway import GuardedGateway, guarded_gateway


def caller(**plan: int) -> Caller:
    return Caller("a", "key", operator=False, salt_key=bytes(32), plan=TenantPlan(**plan))


@pytest.mark.parametrize("quota", ["max_concurrent", "requests_per_minute"])
def test_more_than_may_ever_be_are_too_many(quota: str) -> None:
    who = caller(**{quota: 4})
    check_count(4, who)
    with pytest.raises(TenantQuotaError, match=f"5 prompts.*{quota} 4") as caught:
        check_count(5, who)
    assert caught.value.retry_after_s is None
    assert caught.value.metadata == {"quota": quota, "limit": "4", "tenant": "a"}
    check_count(128, caller())


async def test_all_wait_for_each_other_and_go_in_order() -> None:
    together, went = SeveralRequests(3, caller(tokens_per_minute=100)), list[int]()

    async def go(index: int, most_tokens: int) -> None:
        await together.wait(index, most_tokens)
        went.append(index)

    tasks = [asyncio.create_task(go(index, 41)) for index in (2, 0)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert not went
    await asyncio.gather(*tasks, go(1, most_at_once(100) - 82))
    assert went == [0, 1, 2]


async def test_tokens_that_are_too_many_together_are_refused_for_all() -> None:
    together = SeveralRequests(3, caller(tokens_per_minute=100))
    ends = await asyncio.gather(*(together.wait(index, 42) for index in range(3)), return_exceptions=True)
    for end in ends:
        assert isinstance(end, TenantQuotaError)
        assert end.retry_after_s is None
        assert (end.metadata["quota"], end.metadata["tokens_at_most"]) == ("tokens_per_minute", "125")
    assert len({id(end) for end in ends}) == 3


async def test_of_one_alone_the_scheduler_says_so() -> None:
    await SeveralRequests(1, caller(tokens_per_minute=10)).wait(0, 1000)


@pytest.fixture
async def guarded(scheduler: Any, model_path: Path, tmp_path: Path, http_port: int) -> AsyncIterator[GuardedGateway]:
    async with guarded_gateway(scheduler, model_path, tmp_path / "tenants.db", http_port) as running:
        yield running


@pytest.mark.parametrize(
    ("plan", "count"),
    [
        (TenantPlan(max_concurrent=4), 5),
        (TenantPlan(requests_per_minute=10), 11),
        # Each has max_tokens 16 and a prompt.
        (TenantPlan(tokens_per_minute=60), 5),
    ],
)
async def test_nothing_is_submitted_and_nobody_is_told_to_come_again(
    guarded: GuardedGateway, scheduler: Any, http_port: int, plan: TenantPlan, count: int
) -> None:
    key = await asyncio.to_thread(partial(guarded.store.add, "carol", plan, operator=False))
    await guarded.until_seen()
    url, headers = f"http://127.0.0.1:{http_port}/v1/completions", {"authorization": f"Bearer {key.text}"}
    async with httpx2.AsyncClient(headers=headers, timeout=30) as client:
        for _ in range(2):
            answer = await client.post(url, json={"prompt": ["hello"] * count})
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "tenant_quota")
            assert answer.headers["x-should-retry"] == "false"
            assert "retry-after" not in answer.headers
        assert not scheduler.sequences
        answer = await client.post(url, json={"prompt": ["hello"] * 2})
        assert [choice["text"] for choice in answer.json()["choices"]] == ["hello"] * 2
    assert len(scheduler.sequences) == 2
