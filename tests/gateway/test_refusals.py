"""Refusals at the gateway: which never reach the scheduler, what wins, and what the scheduler is told of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import grpc
import grpc.aio
import pytest

from tercet.mesh.v1 import sequence_pb2
from tercet.tenants.api_key import new_key
from tercet.v1 import inference_pb2 as pb

from .guarded_gateway import GuardedGateway, Refusal, until

NOT_INCLUDED = sequence_pb2.Failure(
    reason="PERMISSION_DENIED", message="not included", metadata={"traffic_class": "batch"}
)


def quota(name: str, limit: int, retry_after_ms: int) -> sequence_pb2.Failure:
    metadata = {"quota": name, "limit": str(limit), "tenant": "alice"}
    message = f"the plan's {name} of {limit} is used up"
    return sequence_pb2.Failure(
        reason="TENANT_QUOTA", message=message, metadata=metadata, retry_after_ms=retry_after_ms
    )


def asking(prompt: str = "hello", **fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(prompt=prompt, **fields)


async def refused(guarded: GuardedGateway, request: pb.GenerateRequest, who: str = "alice") -> tuple[Refusal, int]:
    """How a request is refused, and how many of it reached the scheduler."""
    before = len(guarded.scheduler.sequences)
    answer = await guarded.refused("Inference/Generate", who, request)
    return answer, len(guarded.scheduler.sequences) - before


@pytest.fixture
async def full(guarded: GuardedGateway) -> GuardedGateway:
    """A gateway whose scheduler says how much a worker holds, and that alice has had her requests of the minute."""
    scheduler = guarded.scheduler
    scheduler.max_model_len = scheduler.max_sequence_len = 200
    await scheduler.send_pools()
    # Behind the pools on the same stream.
    await guarded.call("Inference/Generate", "bob", asking())
    scheduler.refuse = quota("requests_per_minute", 3, 20_000)
    return guarded


async def test_what_the_scheduler_has_just_said_is_said_without_it(full: GuardedGateway) -> None:
    first, asked = await refused(full, asking())
    assert (first.reason, asked) == ("TENANT_QUOTA", 1)
    for request in (asking(), asking("another"), pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 2]))):
        assert await refused(full, request) == (first, 0)
    # Others, and other classes, are asked for.
    assert (await refused(full, asking(traffic_class="batch")))[1] == 1
    assert (await refused(full, asking(), "bob"))[1] == 1


async def test_a_class_that_the_plan_does_not_include(full: GuardedGateway) -> None:
    full.scheduler.refuse = NOT_INCLUDED
    first, asked = await refused(full, asking(traffic_class="batch"))
    assert (first.reason, first.variables, asked) == ("PERMISSION_DENIED", (("traffic_class", "batch"),), 1)
    assert await refused(full, asking(traffic_class="batch")) == (first, 0)


async def test_what_is_wrong_with_the_size_is_said_first(full: GuardedGateway) -> None:
    await refused(full, asking())
    too_long, asked = await refused(full, asking("x" * 200))
    assert (too_long.reason, asked) == ("PROMPT_TOO_LONG", 0)
    # Nobody here knows whether it is.
    assert (await refused(full, asking("x" * 190)))[1] == 1
    several = pb.SamplingParams(n=2)
    assert (await refused(full, asking(sampling=several)))[1] == 1


async def test_a_chat_that_cannot_be_is_said_first(full: GuardedGateway) -> None:
    await refused(full, asking())
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hello")])
    assert (await refused(full, pb.GenerateRequest(chat=chat)))[1] == 0
    chat.messages[0].role = "nobody"
    wrong, asked = await refused(full, pb.GenerateRequest(chat=chat))
    assert (wrong.reason, asked) == ("INVALID_FIELD", 0)


async def test_requests_at_a_time(full: GuardedGateway) -> None:
    full.scheduler.refuse = None
    running = await full.hold("alice")
    full.scheduler.refuse = quota("max_concurrent", 1, 700)
    first, asked = await refused(full, asking())
    assert (first.reason, asked) == ("TENANT_QUOTA", 1)
    assert await refused(full, asking()) == (first, 0)
    # Once it is over the scheduler may have room.
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await full.scheduler.sequences[-2].cancelled.wait()
    assert (await refused(full, asking()))[1] == 1


async def test_another_plan_is_asked_for(full: GuardedGateway) -> None:
    await refused(full, asking())
    full.store.change("alice", requests_per_minute=100)
    await full.until_seen()
    full.scheduler.refuse = None
    assert await full.call("Inference/Generate", "alice", asking())


async def test_another_scheduler_is_asked(full: GuardedGateway) -> None:
    scheduler = full.scheduler
    await refused(full, asking())
    await scheduler.stop()
    scheduler.epoch += 1
    scheduler.refuse = None
    await scheduler.start()
    await full.until_ready()
    assert await full.call("Inference/Generate", "alice", asking())


async def test_the_scheduler_is_told_what_never_reached_it(
    full: GuardedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.link.TELL_S", 0.05)
    for _ in range(3):
        await refused(full, asking())
    await full.refused("Inference/Generate", new_key(), asking())
    await refused(full, asking(model="other", traffic_class="rag"), "bob")
    await refused(full, asking("x" * 5000), "bob")
    bad = full.channel.unary_unary("/tercet.v1.Inference/GenerateOnce")
    with pytest.raises(grpc.aio.AioRpcError):
        await bad(b"\xff", metadata=(("authorization", f"Bearer {full.keys['bob'].text}"),))
    counted: Counter[tuple[str | None, str, str]] = Counter()

    def told() -> bool:
        counted.clear()
        for each in full.scheduler.refusals:
            tenant = each.tenant_id if each.HasField("tenant_id") else None
            counted[tenant, each.traffic_class, each.reason] += each.count
        return counted.total() >= 6

    await until(told)
    # The first one of alice's the scheduler has refused and counted itself.
    assert counted == {
        ("alice", "", "TENANT_QUOTA"): 2,
        (None, "", "UNAUTHENTICATED"): 1,
        ("bob", "rag", "MODEL_NOT_FOUND"): 1,
        ("bob", "", "PROMPT_TOO_LONG"): 1,
        ("bob", "", "INVALID_FIELD"): 1,
    }


async def test_what_was_refused_without_a_scheduler_is_told_to_the_next(
    full: GuardedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.link.TELL_S", 0.05)
    await full.scheduler.stop()
    answer = await full.refused("Inference/Generate", "bob", asking())
    while answer.reason != "SCHEDULER_LOST":
        answer = await full.refused("Inference/Generate", "bob", asking())
    await asyncio.sleep(0.1)
    full.scheduler.epoch += 1
    await full.scheduler.start()
    await until(lambda: any(each.reason == "SCHEDULER_LOST" for each in full.scheduler.refusals))
