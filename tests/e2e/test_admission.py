"""Who is let in, with three real processes: quotas that hold under concurrency, and queues that end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

from tercet.client import AsyncClient
from tercet.errors import (
    DeadlineUnreachableError,
    PermissionDeniedError,
    QueueExpiredError,
    QueueFullError,
    SloUnreachableError,
    TenantQuotaError,
    UnauthenticatedError,
)
from tercet.v1 import inference_pb2, inference_pb2_grpc

from .conftest import ROOT, Mesh

pytestmark = pytest.mark.e2e

TOKENS_PER_MINUTE = 100
SETTINGS = {
    "TERCET_WORKER_MAX_NUM_SEQS": "1",
    "TERCET_SCHEDULER_ADMISSION_MODE": "enforce",
    "TERCET_CLASSES_INTERACTIVE_TTFT_MS": "0",
    # Nobody but the first on an idle mesh is that fast.
    "TERCET_CLASSES_HASTY_RANK": "1",
    "TERCET_CLASSES_HASTY_TTFT_MS": "1",
    "TERCET_CLASSES_BATCH_MAX_QUEUED_REQUESTS": "1",
    "TERCET_CLASSES_BATCH_MAX_QUEUE_SECONDS": "3",
}
PLANS = {
    "metered": ("--tokens-per-minute", str(TOKENS_PER_MINUTE)),
    "chatty": ("--class", "interactive"),
    "paced": ("--requests-per-minute", "20"),
    "free": (),
    "boss": ("--operator",),
}


class Door:
    """A mesh that runs one request at a time, and the keys of its tenants."""

    def __init__(self, mesh: Mesh, keys: dict[str, str]) -> None:
        self.mesh = mesh
        self._keys = keys

    def client(self, tenant: str) -> AsyncClient:
        """A client of that tenant."""
        return AsyncClient(self.mesh.address, api_key=self._keys[tenant])

    async def refusal(self, tenant: str) -> status_pb2.Status:
        """What a request of that tenant is refused with, as it is on the wire."""
        request = inference_pb2.GenerateRequest(prompt="Once upon a time")
        async with grpc.aio.insecure_channel(self.mesh.address) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GenerateOnce(request, metadata=(("authorization", f"Bearer {self._keys[tenant]}"),))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailers = dict(caught.value.trailing_metadata())
        return status_pb2.Status.FromString(trailers["grpc-status-details-bin"])


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """One mesh for all tests here."""
    folder = tmp_path_factory.mktemp("admission")
    store = str(folder / "tenants.db")

    def add(name: str, *arguments: str) -> str:
        command = [sys.executable, "-m", "tercet", "tenant", "add", name, *arguments, "--tenants-store", store]
        done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=60, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    mesh = Mesh(Path(folder), {**SETTINGS, "TERCET_TENANTS_STORE": store})
    keys = {name: add(name, *arguments) for name, arguments in PLANS.items()}
    try:
        mesh.start()
        yield Door(mesh, keys)
    finally:
        mesh.stop()


async def ask(client: AsyncClient, max_tokens: int, **options: Any) -> int:
    """A request with that many tokens of output; the tokens that it used."""
    answer = await client.generate_once("Once upon a time", max_tokens=max_tokens, ignore_eos=True, **options)
    usage = answer.finished.usage
    return usage.prompt_tokens + usage.completion_tokens


async def until_there(door: Door, running: int, waiting: int) -> None:
    """Waits until the scheduler has so many requests, or more."""
    async with door.client("boss") as boss:
        while True:
            fleet = await boss.fleet()
            if fleet.requests_running >= running and fleet.requests_waiting >= waiting:
                return
            await asyncio.sleep(0.05)


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancels them, and waits until their calls are over."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_fifty_at_once_never_use_more_than_the_limit_and_its_debt(door: Door) -> None:
    begun = time.monotonic()
    async with door.client("metered") as client:
        answers = await asyncio.gather(*(ask(client, 10) for _ in range(50)), return_exceptions=True)
        passed = time.monotonic() - begun
        used = [answer for answer in answers if isinstance(answer, int)]
        refused = [answer for answer in answers if isinstance(answer, TenantQuotaError)]
        assert len(used) + len(refused) == 50
        assert 0 < sum(used) <= TOKENS_PER_MINUTE * (1 + 1 / 4 + passed / 60)
        assert len(refused) >= 40
        assert {error.metadata["quota"] for error in refused} == {"tokens_per_minute"}
        waits = [error.retry_after_s or 0.0 for error in refused]
        # What is short of a few tokens has them in a few seconds; one comes behind the other.
        assert 0 < min(waits) < 20
        assert min(waits) < max(waits) < 31
        await asyncio.sleep(min(waits))
        assert await ask(client, 10) > 10


async def test_who_has_had_his_requests_of_the_minute_is_told_when_to_come_again_and_counted(door: Door) -> None:
    async with door.client("paced") as client:
        answers = await asyncio.gather(*(ask(client, 1) for _ in range(30)), return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, TenantQuotaError)]
        # All of these the gateway answers by itself.
        in_a_row: list[TenantQuotaError] = []
        while len(in_a_row) < 10:
            try:
                await ask(client, 1)
                # Its time has come meanwhile.
                in_a_row.clear()
            except TenantQuotaError as error:
                in_a_row.append(error)
                refused.append(error)
        assert {error.metadata["quota"] for error in refused} == {"requests_per_minute"}
        waits = [error.retry_after_s or 0.0 for error in in_a_row]
        # One comes behind the other.
        assert 0 < min(waits) < max(waits) < 31
        status, quota = await door.refusal("paced"), error_details_pb2.QuotaFailure()
        (detail,) = [detail for detail in status.details if detail.Is(quota.DESCRIPTOR)]
        detail.Unpack(quota)
        # Of the quota it says no more than the message, and whose it is.
        assert [(each.subject, each.description) for each in quota.violations] == [("tenant:paced", status.message)]
        await asyncio.sleep(min(waits))
        assert await ask(client, 1)
    async with AsyncClient(door.mesh.address) as nobody:
        with pytest.raises(UnauthenticatedError):
            await ask(nobody, 1)
    async with door.client("boss") as boss:
        counted: dict[str | None, dict[str, int]] = {}
        # Whoever refused them: the gateway tells once a second.
        expected = {"TENANT_QUOTA": len(refused) + 1}
        while counted.get("paced") != expected or "UNAUTHENTICATED" not in counted.get(None, {}):
            await asyncio.sleep(0.1)
            counted = {each.tenant: dict(each.counts.refused) for each in (await boss.traffic()).tenants}


async def test_a_plan_says_which_classes_there_are(door: Door) -> None:
    async with door.client("chatty") as client:
        with pytest.raises(PermissionDeniedError, match="includes interactive"):
            await ask(client, 1, traffic_class="batch")
        assert await ask(client, 1)


async def test_a_class_has_a_queue_of_its_own_that_ends(door: Door) -> None:
    async with door.client("free") as client:
        running = asyncio.ensure_future(ask(client, 2000))
        await until_there(door, running=1, waiting=0)
        waiting = asyncio.ensure_future(ask(client, 1, traffic_class="batch"))
        await until_there(door, running=1, waiting=1)
        with pytest.raises(QueueFullError, match=r"classes\.batch\.max_queued_requests") as full:
            await ask(client, 1, traffic_class="batch")
        assert full.value.retry_after_s
        with pytest.raises(QueueExpiredError, match=r"classes\.batch\.max_queue_seconds") as expired:
            await waiting
        assert expired.value.retry_after_s
        assert not running.done()
        await cancelled(running)
    async with door.client("free") as client:
        assert await ask(client, 1, traffic_class="batch")


async def test_a_promise_that_cannot_be_kept_is_not_made(door: Door) -> None:
    async with door.client("free") as client:
        running = asyncio.ensure_future(ask(client, 400))
        await until_there(door, running=1, waiting=0)
        asked = [asyncio.ensure_future(ask(client, 1, traffic_class="hasty")) for _ in range(8)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, SloUnreachableError)]
        # One of a kind may be let in to see whether the forecast is right.
        assert len(refused) >= 6
        assert all(error.retry_after_s for error in refused)
        await cancelled(running)


async def test_a_deadline_that_cannot_be_met_is_told(door: Door) -> None:
    async with door.client("free") as client:
        # However short their answers are taken to be, they need more than that, one after the other.
        ahead = [asyncio.ensure_future(ask(client, 400)) for _ in range(200)]
        await until_there(door, running=0, waiting=190)
        asked = [asyncio.ensure_future(ask(client, 1, timeout_s=2.0)) for _ in range(4)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        # One of a kind may be let in to see whether the forecast is right.
        assert sum(isinstance(answer, DeadlineUnreachableError) for answer in answers) >= 3
        await cancelled(*ahead)
