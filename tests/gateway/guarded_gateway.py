"""A gateway that asks for keys, and what its callers see of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from gateway import server
from tercet.sections import GatewaySettings, LedgerSettings, MeshConfig, ModelSettings, TenantsSettings
from tercet.tenants.api_key import ApiKey
from tercet.tenants.plan import TenantPlan
from tercet.tenants.store import Store
from tercet.v1 import inference_pb2, models_pb2, operations_pb2

SERVICES = {
    "Inference": inference_pb2.DESCRIPTOR.services_by_name["Inference"],
    "Models": models_pb2.DESCRIPTOR.services_by_name["Models"],
    "Operations": operations_pb2.DESCRIPTOR.services_by_name["Operations"],
}
# As "Inference/Generate".
METHODS = {f"{name}/{method.name}": method for name, service in SERVICES.items() for method in service.methods}
PROMPT = inference_pb2.GenerateRequest(prompt="hello", request_id="mine")

Headers = tuple[tuple[str, str | bytes], ...]


class Refusal(NamedTuple):
    """All that a refused caller learns."""

    code: grpc.StatusCode
    text: str
    reason: str
    variables: tuple[tuple[str, str], ...]


def bearer(key: ApiKey | str) -> Headers:
    """The metadata of a call with a key."""
    return (("authorization", f"Bearer {key.text if isinstance(key, ApiKey) else key}"),)


async def call(channel: grpc.aio.Channel, method: str, headers: Headers, request: Message | None = None) -> list[Any]:
    """All messages that a method of the public API answers."""
    described = METHODS[method]
    sends, gets = described.input_type._concrete_class, described.output_type._concrete_class
    kind = channel.unary_stream if described.server_streaming else channel.unary_unary
    made = kind(f"/tercet.v1.{method}", sends.SerializeToString, gets.FromString)(
        request or sends(), timeout=30, metadata=headers
    )
    return [each async for each in made] if described.server_streaming else [await made]


async def refusal(awaitable: Awaitable[Any]) -> Refusal:
    """How a call is refused; it must be, with a typed error."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    status = status_pb2.Status.FromString(dict(caught.value.trailing_metadata())["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return Refusal(caught.value.code(), str(caught.value.details()), info.reason, tuple(sorted(info.metadata.items())))


async def until(check: Callable[[], bool]) -> None:
    """Waits until a check holds. What it waits for has no event of its own on this side of the wire."""
    while True:
        if check():
            return
        await asyncio.sleep(0.01)


class GuardedGateway:
    """Before a scripted scheduler, with two tenants and an operator; `keys` has a key of each."""

    def __init__(
        self, address: str, channel: grpc.aio.Channel, scheduler: Any, store: Store, keys: dict[str, ApiKey]
    ) -> None:
        self.address = address
        self.channel = channel
        self.scheduler = scheduler
        self.store = store
        self.keys = keys

    async def call(self, method: str, who: ApiKey | str, request: Message | None = None) -> list[Any]:
        """As `call`, with a key or that of one of `keys`."""
        return await call(self.channel, method, bearer(self.keys[who] if isinstance(who, str) else who), request)

    async def refused(self, method: str, who: ApiKey | str, request: Message | None = None) -> Refusal:
        """As `call`, for one that must be refused."""
        return await refusal(self.call(method, who, request))

    async def hold(self, who: ApiKey | str, request_id: str = "mine") -> asyncio.Task[Any]:
        """A request that has been submitted, and goes on until it is ended."""

        async def play(_: Any) -> None:
            await asyncio.Event().wait()

        self.scheduler.play = play
        before = len(self.scheduler.sequences)
        request = inference_pb2.GenerateRequest(prompt="hello", request_id=request_id)
        task = asyncio.create_task(self.call("Inference/Generate", who, request))
        await until(lambda: len(self.scheduler.sequences) > before)
        return task

    async def until_ready(self) -> None:
        """Waits until requests find the scheduler."""
        while True:
            if (await self.call("Models/ListModels", "bob"))[0].models[0].ready:
                return
            await asyncio.sleep(0.01)

    async def until_seen(self) -> None:
        """Waits until the gateway has seen what the store holds: it tells the scheduler in the same moment."""
        revision = (await asyncio.to_thread(self.store.read)).revision  # type: ignore[union-attr]
        await until(lambda: bool(self.scheduler.tenants) and self.scheduler.tenants[-1].revision == revision)


@contextlib.asynccontextmanager
async def guarded_gateway(
    scheduler: Any, model_path: Path, path: Path, http_port: int = 0
) -> AsyncIterator[GuardedGateway]:
    """A gateway with a store at `path`, once it has found its scheduler."""
    store = Store(str(path), time.time)
    store.create()
    keys = {name: store.add(name, TenantPlan(), operator=name == "boss") for name in ("alice", "bob", "boss")}
    config = MeshConfig(
        model=ModelSettings(model=str(model_path), served_model_name=("bytes",)),
        gateway=GatewaySettings(
            port=0, http_port=http_port, scheduler=(f"127.0.0.1:{scheduler.port}",), drain_seconds=1
        ),
        tenants=TenantsSettings(store=str(path)),
        ledger=LedgerSettings(database="none"),
    )
    stopping = asyncio.Event()
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(server.run(config, stopping, port.set_result))
    await asyncio.wait([task, port], return_when=asyncio.FIRST_COMPLETED)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port.result()}") as channel:
        gateway = GuardedGateway(f"127.0.0.1:{port.result()}", channel, scheduler, store, keys)
        await gateway.until_ready()
        yield gateway
    stopping.set()
    await task
    store.close()
