"""Gateways that are told to stop, one after the other, under clients that know nothing but gRPC: no call fails."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable

import grpc
import grpc.aio
import pytest

from tercet.v1 import inference_pb2 as pb
from tercet.v1 import inference_pb2_grpc

from .conftest import Mesh, free_port, wait_until

pytestmark = pytest.mark.e2e

HANDOVER = {"TERCET_GATEWAY_HANDOVER_SECONDS": "2", "TERCET_WORKER_NUM_THREADS": "1"}
CALLS_PER_SECOND = 12.5


class Caller:
    """Asks again and again on one channel with gRPC's own defaults, whatever has become of the calls before."""

    def __init__(self, target: str, *options: tuple[str, object]) -> None:
        self.ends: Counter[str] = Counter()
        self._target = target
        # Not that of others in this process.
        self._options = [("grpc.use_local_subchannel_pool", 1), *options]

    async def run(self, until: asyncio.Event) -> None:
        async with grpc.aio.insecure_channel(self._target, options=self._options) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            calls = []
            while not until.is_set():
                calls.append(asyncio.create_task(self._call(stub, streams=len(calls) % 2 == 0)))
                await asyncio.sleep(1 / CALLS_PER_SECOND)
            await asyncio.gather(*calls)

    async def _call(self, stub: inference_pb2_grpc.InferenceStub, *, streams: bool) -> None:
        try:
            if streams:
                request = pb.GenerateRequest(prompt="Once", stop=pb.StopConditions(max_tokens=3, ignore_eos=True))
                async for _ in stub.Generate(request):
                    pass
            else:
                await stub.Tokenize(pb.TokenizeRequest(prompt="Once upon a time"))
            self.ends["well"] += 1
        except grpc.aio.AioRpcError as error:
            self.ends[f"{error.code().name}: {error.details()}"] += 1


async def roll(gateways: list[Mesh], callers: list[Caller]) -> Counter[str]:
    """Each gateway is told to stop and started anew, under load. How all calls ended."""
    over = asyncio.Event()
    running = [asyncio.create_task(caller.run(over)) for caller in callers]
    for mesh in gateways:
        # By its own defaults gRPC tries an address that was not there again after 1 s, and then after 1.6 or so.
        await asyncio.sleep(3)
        assert await asyncio.to_thread(mesh.kill, "gateway", signal.SIGTERM) == 0
        await asyncio.to_thread(mesh.start, "gateway")
        await asyncio.to_thread(wait_until, lambda mesh=mesh: mesh.healthy("gateway"), "it serves again")
    over.set()
    await asyncio.gather(*running)
    return sum((caller.ends for caller in callers), Counter())


@pytest.fixture
def mesh(own_mesh: Callable[..., Mesh]) -> Mesh:
    """A scheduler and a worker."""
    made = own_mesh(**HANDOVER)
    made.start("scheduler", "worker")
    return made


def beside(mesh: Mesh, own_mesh: Callable[..., Mesh], **settings: str) -> Mesh:
    """Another gateway of a mesh."""
    gateway = own_mesh(**HANDOVER, TERCET_GATEWAY_SCHEDULER=mesh.address_of("scheduler"), **settings)
    gateway.start("gateway")
    wait_until(lambda: gateway.healthy("gateway"), "the gateway serves")
    return gateway


async def test_no_call_fails_at_a_port_that_gateways_share(mesh: Mesh, own_mesh: Callable[..., Mesh]) -> None:
    shared = str(free_port())
    gateways = [beside(mesh, own_mesh, TERCET_GATEWAY_SHARED_PORT=shared) for _ in range(2)]
    ends = await roll(gateways, [Caller(f"127.0.0.1:{shared}") for _ in range(4)])
    assert set(ends) == {"well"}, ends
    assert all(gateway.records("gateway", "request_ended") for gateway in gateways)


async def test_no_call_fails_on_a_channel_that_knows_both(mesh: Mesh, own_mesh: Callable[..., Mesh]) -> None:
    gateways = [beside(mesh, own_mesh) for _ in range(2)]
    target = "ipv4:" + ",".join(gateway.address for gateway in gateways)
    callers = [Caller(target, ("grpc.lb_policy_name", policy)) for policy in ("round_robin", "pick_first") * 2]
    ends = await roll(gateways, callers)
    assert set(ends) == {"well"}, ends
