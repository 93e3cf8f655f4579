"""Tenants of one gateway: what the scheduler is told of them, and that they learn nothing of each other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from tercet.mesh.v1 import sequence_pb2
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import operations_pb2

from .guarded_gateway import PROMPT, GuardedGateway, call, refusal, until


async def test_the_scheduler_is_told_who_asks_and_what_tenants_may_do(guarded: GuardedGateway) -> None:
    scheduler = guarded.scheduler
    scheduler.forecast_us = 1_500_000
    accepted = (await guarded.call("Inference/Generate", "alice", PROMPT))[0].accepted
    assert (accepted.forecast_seconds, accepted.queue_position) == (1.5, 2)
    assert scheduler.sequences[0].submit.tenant_id == "alice"
    assert [plan.tenant_id for plan in scheduler.tenants[0].tenants] == ["alice", "bob", "boss"]
    assert scheduler.tenants[0].tenants[0].weight == 1.0
    # Each has its own, also who takes the name of another.
    assert len({plan.uid for plan in scheduler.tenants[0].tenants} - {""}) == 3
    plan = {
        "default_class": "batch", "weight": 2.0, "requests_per_minute": 7, "tokens_per_minute": 2**40,
        "max_concurrent": 3, "kv_share": 0.5, "max_context": 99, "min_priority": -4,
    }  # fmt: skip
    guarded.store.change("alice", classes=("rag", "batch"), **plan)
    await guarded.until_seen()
    assert len(scheduler.tenants) == 2
    told = scheduler.tenants[1].tenants[0]
    assert {name: getattr(told, name) for name in plan} == plan
    assert tuple(told.classes) == ("rag", "batch")
    # No word of a key.
    written = [update.SerializeToString() for update in scheduler.tenants]
    assert not any(key.id.encode() in update for key in guarded.keys.values() for update in written)


async def test_a_forecast_that_is_not_there_is_absent(guarded: GuardedGateway) -> None:
    accepted = (await guarded.call("Inference/Generate", "alice", PROMPT))[0].accepted
    assert not accepted.HasField("forecast_seconds")


async def test_each_scheduler_is_told_before_anything_is_submitted(guarded: GuardedGateway) -> None:
    scheduler = guarded.scheduler
    order: list[str] = []

    class Told(list[Any]):
        def append(self, update: Any) -> None:
            order.append("tenants")
            super().append(update)

    async def play(sequence: Any) -> None:
        order.append("submit")
        await scheduler.echo(sequence)

    await scheduler.stop()
    scheduler.tenants, scheduler.play = Told(), play
    scheduler.epoch += 1
    await scheduler.start()
    while not order or order[-1] != "submit":
        with contextlib.suppress(grpc.aio.AioRpcError):
            await guarded.call("Inference/Generate", "alice", PROMPT)
    assert order == ["tenants", "submit"]
    assert len(scheduler.tenants[0].tenants) == 3


async def test_tenants_have_salts_of_their_own(guarded: GuardedGateway) -> None:
    async def salt(name: str, cache_salt: str) -> bytes:
        request = pb.GenerateRequest(prompt="hello", cache_salt=cache_salt)
        await guarded.call("Inference/GenerateOnce", name, request)
        return bytes(guarded.scheduler.sequences[-1].submit.prefix_salt)

    salts = [await salt(name, text) for name in ("alice", "bob") for text in ("", "x", "alice", "bob")]
    assert {len(each) for each in salts} == {32}
    assert len(set(salts)) == len(salts)
    # Its keys come and go; what it has cached stays its own.
    guarded.keys["alice"] = guarded.store.rotate("alice", grace_s=60, operator=None)
    await guarded.until_seen()
    assert [await salt("alice", text) for text in ("", "x")] == salts[:2]


async def test_two_tenants_may_use_one_id_and_neither_can_tell(guarded: GuardedGateway) -> None:
    alices, bobs = await guarded.hold("alice"), await guarded.hold("bob")
    again = await guarded.refused("Inference/Generate", "alice", PROMPT)
    assert (again.reason, again.variables) == ("DUPLICATE_REQUEST", (("request_id", "mine"),))

    async def cancel(name: str, request_id: str = "mine", tenant: str = "") -> bool:
        request = operations_pb2.CancelGenerationRequest(request_id=request_id, tenant=tenant)
        return bool((await guarded.call("Operations/CancelGeneration", name, request))[0].found)

    # Their own alone; others' are as if they were not.
    assert await cancel("alice")
    assert (await refusal(alices)).reason == "REQUEST_CANCELLED"
    assert not await cancel("alice")
    assert not await cancel("alice", tenant="alice")
    denied = {await refusal(cancel("alice", request_id, "bob")) for request_id in ("mine", "nothing")}
    assert [each.reason for each in denied] == ["PERMISSION_DENIED"]
    assert not bobs.done()
    # An operator finds whoever's, or one tenant's.
    assert not await cancel("boss", tenant="alice")
    assert await cancel("boss", tenant="bob")
    assert (await refusal(bobs)).reason == "REQUEST_CANCELLED"
    both = [await guarded.hold("alice"), await guarded.hold("bob")]
    assert await cancel("boss")
    assert {(await refusal(each)).reason for each in both} == {"REQUEST_CANCELLED"}
    assert not await cancel("boss")


async def test_a_revoked_key_takes_along_what_it_started(guarded: GuardedGateway) -> None:
    other = guarded.store.rotate("alice", grace_s=3600, operator=None)
    await guarded.until_seen()
    by_first, by_other = await guarded.hold("alice", "first"), await guarded.hold(other, "other")
    guarded.store.revoke("alice", guarded.keys["alice"].id)
    told = await refusal(by_first)
    assert (told.code, told.text) == (grpc.StatusCode.CANCELLED, "the key of the request was revoked")
    cancelled = next(each for each in guarded.scheduler.sequences if each.submit.request_id == "first")
    await cancelled.cancelled.wait()
    assert cancelled.cancel_reason == sequence_pb2.CANCEL_REASON_OPERATOR
    assert (await guarded.refused("Models/ListModels", "alice")).reason == "UNAUTHENTICATED"
    assert await guarded.call("Models/ListModels", other)
    assert not by_other.done()


async def test_a_key_that_only_ends_takes_nothing_along(guarded: GuardedGateway) -> None:
    running = await guarded.hold("alice")
    fresh = guarded.store.rotate("alice", grace_s=0, operator=None)
    await guarded.until_seen()
    assert (await guarded.refused("Models/ListModels", "alice")).reason == "UNAUTHENTICATED"
    assert await guarded.call("Models/ListModels", fresh)
    assert not running.done()
    guarded.store.remove("alice")
    assert (await refusal(running)).reason == "REQUEST_CANCELLED"
    assert (await guarded.refused("Models/ListModels", fresh)).reason == "UNAUTHENTICATED"


async def test_a_plan_bounds_what_a_gateway_holds(guarded: GuardedGateway) -> None:
    """Twice what it allows, since the scheduler here allows everything."""
    guarded.store.change("alice", max_concurrent=1)
    await guarded.until_seen()
    held = [await guarded.hold("alice", request_id) for request_id in ("1", "2")]
    refused = await guarded.refused("Inference/Generate", "alice", PROMPT)
    assert (refused.reason, dict(refused.variables)["quota"]) == ("TENANT_QUOTA", "max_concurrent")
    held.append(await guarded.hold("bob"))
    await guarded.call("Operations/CancelGeneration", "alice", operations_pb2.CancelGenerationRequest(request_id="1"))
    assert (await refusal(held[0])).reason == "REQUEST_CANCELLED"
    held.append(await guarded.hold("alice", "3"))
    for task in held:
        task.cancel()


async def test_a_full_gateway_does_not_say_how_full(
    scheduler: Any, make_gateway: Callable[..., Awaitable[Any]], stop_gateway: Callable[[Any], Awaitable[None]]
) -> None:
    async def play(_: Any) -> None:
        await asyncio.Event().wait()

    scheduler.play = play
    gateway = await make_gateway(scheduler.port, max_concurrent_requests=1)
    await gateway.until_ready()
    first = asyncio.create_task(call(gateway.channel, "Inference/Generate", (), PROMPT))
    await until(lambda: bool(scheduler.sequences))
    full = await refusal(call(gateway.channel, "Inference/GenerateOnce", (), pb.GenerateRequest(prompt="x")))
    assert (full.reason, full.variables) == ("QUEUE_FULL", ())
    assert not any(character.isdigit() for character in full.text)
    first.cancel()
    await stop_gateway(gateway)
