"""Who may call a gateway with keys, and how all others are refused."""

from __future__ import annotations

import asyncio
import types
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gateway import server
from gateway.caller import ANYONE
from gateway.guard import Guard
from tercet import errors
from tercet.sections import GatewaySettings, MeshConfig, ModelSettings, TenantsSettings
from tercet.tenants.api_key import ApiKey, new_key
from tercet.tenants.plan import TenantPlan
from tercet.tenants.store import Store

from .guarded_gateway import METHODS, PROMPT, GuardedGateway, Headers, bearer, call, refusal

# What a tenant's key opens; all else is an operator's.
OF_TENANTS = {method for method in METHODS if not method.startswith("Operations/")} | {"Operations/CancelGeneration"}


def test_there_are_methods_of_all_kinds() -> None:
    assert {"Inference/Generate", "Models/ListModels", "Operations/GetFleet"} <= set(METHODS)


@pytest.mark.parametrize("method", METHODS)
async def test_every_call_needs_a_key(guarded: GuardedGateway, method: str) -> None:
    without = await refusal(call(guarded.channel, method, ()))
    assert without == (
        grpc.StatusCode.UNAUTHENTICATED,
        "this call needs a valid key, as metadata `authorization: Bearer KEY`",
        "UNAUTHENTICATED",
        (),
    )
    assert await guarded.refused(method, new_key()) == without


@pytest.mark.parametrize("method", METHODS)
async def test_what_a_tenant_may_call(guarded: GuardedGateway, method: str) -> None:
    """That a call got past the guard shows by an answer, or by an error about the empty request."""

    async def code(who: str) -> grpc.StatusCode:
        try:
            await guarded.call(method, who)
        except grpc.aio.AioRpcError as error:
            found: grpc.StatusCode = error.code()
            return found
        return grpc.StatusCode.OK

    assert (await code("alice") is grpc.StatusCode.PERMISSION_DENIED) is (method not in OF_TENANTS)
    assert await code("boss") not in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)


async def test_whatever_is_wrong_with_a_key_the_answer_is_the_same(guarded: GuardedGateway) -> None:
    alice, bob, boss = (guarded.keys[name] for name in ("alice", "bob", "boss"))
    expired = guarded.store.rotate("bob", grace_s=0, operator=None)
    guarded.store.rotate("bob", grace_s=0, operator=None)
    guarded.store.revoke("alice", alice.id)
    await guarded.until_seen()
    wrong: list[Headers] = [
        (),
        bearer(""),
        bearer("x"),
        bearer(new_key()),
        bearer(ApiKey(bob.id, alice.secret)),
        bearer(ApiKey(boss.id, boss.secret[::-1])),
        bearer(expired),
        bearer(alice),
        bearer(f"{boss.text}0"),
        (("authorization", boss.text),),
        (("authorization", f"Basic {boss.text}"),),
        (*bearer(boss), *bearer(boss)),
        (("x-api-key", boss.text),),
        (("authorization-bin", boss.text.encode()),),
    ]
    found = [await refusal(call(guarded.channel, "Models/ListModels", headers)) for headers in wrong]
    assert len(set(found)) == 1
    assert found[0].reason == "UNAUTHENTICATED"
    # Schemes are not case-sensitive, and space around the key is nobody's mistake.
    assert await call(guarded.channel, "Models/ListModels", (("authorization", f"bearer  {boss.text} "),))


async def test_health_and_reflection_are_open(guarded: GuardedGateway) -> None:
    health = health_pb2_grpc.HealthStub(guarded.channel)
    answer = await health.Check(health_pb2.HealthCheckRequest(service="tercet.v1.Inference"))
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    asked = reflection_pb2_grpc.ServerReflectionStub(guarded.channel).ServerReflectionInfo(iter([request]))
    listed = {service.name async for each in asked for service in each.list_services_response.service}
    assert {"tercet.v1.Inference", "tercet.v1.Models", "tercet.v1.Operations"} <= listed


async def test_no_secret_is_in_the_log(guarded: GuardedGateway) -> None:
    alice = guarded.keys["alice"]
    wrong = ApiKey(alice.id, "f" * 64)
    with structlog.testing.capture_logs() as logs:
        await guarded.call("Inference/GenerateOnce", "alice", PROMPT)
        await guarded.refused("Inference/GenerateOnce", wrong, PROMPT)
    (ended,) = [line for line in logs if line["event"] == "request_ended"]
    assert (ended["tenant"], ended["key"]) == ("alice", alice.id)
    assert [line["reason"] for line in logs if line["event"] == "call_refused"] == ["UNAUTHENTICATED"]
    written = repr(logs)
    assert alice.secret not in written
    assert wrong.secret not in written
    directory = guarded.store.read()
    assert directory is not None
    for secret in (directory.server_key, directory.salt_key("alice"), directory.keys[alice.id].digest):
        assert repr(secret)[2:-1] not in written


async def test_without_a_store_everyone_is_let_in(gateway: Any, scheduler: Any) -> None:
    assert Guard(None).operator(None) is ANYONE  # type: ignore[arg-type]
    await call(gateway.channel, "Inference/Generate", (), PROMPT)
    assert scheduler.tenants == []
    assert (scheduler.sequences[0].submit.tenant_id, scheduler.sequences[0].submit.prefix_salt) == ("", b"")
    # A key that nobody asks for does no harm.
    assert await call(gateway.channel, "Operations/GetFleet", bearer(new_key()))
    # Nor does it say that somebody was asked for one.
    assert scheduler.guarded == [False]


async def test_the_scheduler_is_told_that_an_operator_asks(guarded: GuardedGateway) -> None:
    for method in ("GetFleet", "GetTraffic", "DumpPlanLog"):
        await guarded.call(f"Operations/{method}", "boss")
    assert guarded.scheduler.guarded == [True] * 3


@pytest.mark.parametrize("what", ["absent", "text"])
async def test_a_store_that_cannot_be_read_stops_the_start(what: str, tmp_path: Path, model_path: Path) -> None:
    path = tmp_path / "tenants.db"
    if what == "text":
        path.write_text("no database" * 1000)
    config = MeshConfig(
        model=ModelSettings(model=str(model_path)),
        gateway=GatewaySettings(port=0),
        tenants=TenantsSettings(store=str(path)),
    )
    with pytest.raises(errors.StoreError, match=r"^tenants\.store: ") as caught:
        await server.run(config, asyncio.Event())
    assert caught.value.key == "tenants.store"


class Calling:
    """A call with a key."""

    def __init__(self, key: ApiKey) -> None:
        self._headers = bearer(key)

    def invocation_metadata(self) -> Any:
        return self._headers


@pytest.mark.parametrize("restarted", [False, True])
def test_what_has_expired_stays_so_when_the_clock_is_set_back(tmp_path: Path, restarted: bool) -> None:
    now = 1_800_000_000.0
    store = Store(str(tmp_path / "tenants.db"), lambda: now)
    store.create()
    old = store.add("alice", TenantPlan(), operator=False)
    new = store.rotate("alice", grace_s=5, operator=None)
    watch = types.SimpleNamespace(stale=False, directory=store.read())

    def guard() -> Guard:
        return Guard(watch, lambda: now)  # type: ignore[arg-type]

    door = guard()
    assert door.caller(Calling(old)).tenant == "alice"  # type: ignore[arg-type]
    now += 10
    with pytest.raises(errors.UnauthenticatedError):
        door.caller(Calling(old))  # type: ignore[arg-type]
    if restarted:
        # Of the time itself nothing is kept, but of that of the last change.
        store.change("alice", weight=2.0)
        watch.directory = store.read()
        door = guard()
    now -= 3600
    with pytest.raises(errors.UnauthenticatedError):
        door.caller(Calling(old))  # type: ignore[arg-type]
    assert door.caller(Calling(new)).tenant == "alice"  # type: ignore[arg-type]
    store.close()
