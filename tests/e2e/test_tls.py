"""A mesh with TLS: who can talk to whom, and certificates that change while it runs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from scheduler.peers import Peers
from tercet.client import AsyncClient, Client, ClientTls, Delta
from tercet.dialer import Dialer
from tercet.errors import GatewayLostError
from tercet.mesh.v1 import scheduler_pb2, scheduler_pb2_grpc, worker_pb2, worker_pb2_grpc
from tercet.ports import free_ports
from tercet.rpc import open_channel
from tercet.tls.callers import name_of
from tercet.tls.mesh import mesh_identity
from tercet.v1 import operations_pb2

from ..tercet import certificates
from .conftest import ROOT, wait_until
from .tls_mesh import TlsMesh

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsMesh]:
    running = TlsMesh(tmp_path_factory.mktemp("tls"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


async def tokens(address: str, tls: ClientTls | None, count: int = 4) -> int:
    """How many an answer has."""
    async with AsyncClient(address, tls=tls) as client:
        answer = await client.generate_once("Once", max_tokens=count, ignore_eos=True, timeout_s=60)
    return answer.finished.usage.completion_tokens


async def tokens_of_a_thread(address: str, tls: ClientTls | None) -> int:
    """The same, asked for by the other client."""

    def ask() -> int:
        with Client(address, tls=tls, timeout_s=60) as client:
            return client.generate_once("Once", max_tokens=4, ignore_eos=True).finished.usage.completion_tokens

    return await asyncio.to_thread(ask)


@pytest.mark.parametrize("tokens", [tokens, tokens_of_a_thread])
async def test_clients_know_the_gateway_by_its_certificate(
    mesh: TlsMesh, tmp_path: Path, tokens: Callable[[str, ClientTls | None], Awaitable[int]]
) -> None:
    assert await tokens(mesh.address, mesh.tls) == 4
    assert await tokens(f"localhost:{mesh.ports['gateway']}", mesh.tls) == 4
    certificates.make(tmp_path / "other")
    strangers = [
        None,
        ClientTls(),
        ClientTls.from_files(tmp_path / "other" / "ca.pem"),
        ClientTls.from_files(mesh.pki / "ca.pem", server_name="gateway.tercet.internal"),
    ]
    for tls in strangers:
        with pytest.raises(GatewayLostError):
            await tokens(mesh.address, tls)


async def refusal(mesh: TlsMesh, service: str, tls: ClientTls | None) -> grpc.StatusCode:
    """How a scheduler or worker ends a call of somebody."""
    async with open_channel(f"127.0.0.1:{mesh.ports[service]}", tls) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            if service == "scheduler":
                await scheduler_pb2_grpc.SchedulerStub(channel).GetFleet(operations_pb2.GetFleetRequest(), timeout=10)
            else:
                call = worker_pb2_grpc.WorkerStub(channel).Attach(timeout=10)
                await call.write(worker_pb2.WorkerCommands())
                await call.read()
    return caught.value.code()


@pytest.mark.parametrize(
    ("service", "caller", "others"),
    [("scheduler", "gateway", {"worker"}), ("worker", "scheduler", {"gateway", "worker"})],
)
async def test_only_who_has_to_may_call_another_service(
    mesh: TlsMesh, service: str, caller: str, others: set[str], tmp_path: Path
) -> None:
    def shows(who: str, folder: Path = mesh.pki) -> ClientTls:
        pair = (folder / f"{who}.pem", folder / f"{who}-key.pem")
        return ClientTls.from_files(mesh.pki / "ca.pem", *pair, server_name=name_of(service))

    certificates.make(tmp_path / "other")
    nobody = ClientTls.from_files(mesh.pki / "ca.pem", server_name=name_of(service))
    for stranger in (None, nobody, shows(caller, tmp_path / "other")):
        assert await refusal(mesh, service, stranger) is grpc.StatusCode.UNAVAILABLE
    # Of this mesh, but not who they would have to be; the edge's is not even for a client.
    for member in others:
        assert await refusal(mesh, service, shows(member)) is grpc.StatusCode.PERMISSION_DENIED
    assert await refusal(mesh, service, shows("edge")) is grpc.StatusCode.UNAVAILABLE
    if service == "scheduler":
        async with open_channel(f"127.0.0.1:{mesh.ports[service]}", shows(caller)) as channel:
            stub = scheduler_pb2_grpc.SchedulerStub(channel)
            fleet = await stub.GetFleet(operations_pb2.GetFleetRequest(), timeout=10)
            assert len(fleet.workers) == 1
            call = stub.Attach(timeout=10)
            await call.write(scheduler_pb2.GatewayMessage(hello=scheduler_pb2.GatewayHello(gateway_id="test")))
            assert (await call.read()).HasField("hello")
            call.cancel()


async def test_schedulers_hear_of_each_other(mesh: TlsMesh) -> None:
    identity = mesh_identity(mesh.settings, "scheduler")
    heard = asyncio.Event()
    peers = Peers([Dialer(mesh.address_of("scheduler"), "scheduler", identity)], time.monotonic)
    task = asyncio.create_task(peers.run(lambda: heard.set() if peers.heard() else None))
    try:
        await asyncio.wait_for(heard.wait(), 20)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    (standing,) = peers.heard()
    assert standing.term > standing.started


async def test_another_ca_takes_over_while_a_stream_runs(tmp_path: Path) -> None:
    mesh = TlsMesh(tmp_path)
    try:
        mesh.start()
        old = mesh.tls
        async with AsyncClient(mesh.address, tls=old) as client:
            count = 0
            async for event in client.generate("The sea", max_tokens=300, ignore_eos=True, timeout_s=100):
                if isinstance(event, Delta):
                    count += len(event.token_ids)
                if isinstance(event, Delta) and count >= 20 and mesh.tls == old:
                    mesh.renew()
                    # In the middle of it, others are served by the new certificate.
                    assert await tokens(mesh.address, mesh.tls) == 4
                    with pytest.raises(GatewayLostError):
                        await tokens(mesh.address, old)
            assert count == 300
            # The connection is the one it was.
            assert (await client.fleet(timeout_s=10)).workers[0].live
        for name in ("worker", "scheduler", "gateway"):
            mesh.kill(name, signal.SIGKILL)
            mesh.start(name)
            await asyncio.to_thread(
                wait_until, lambda: mesh.healthy("gateway"), f"the mesh serves after {name}:\n{mesh.logs()}"
            )
            assert await tokens(mesh.address, mesh.tls) == 4
    finally:
        mesh.stop()


def test_up_takes_certificates_as_it_takes_everything(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "tercet", "tls", "init", str(tmp_path / "pki")],
        capture_output=True, text=True, check=True, cwd=ROOT, timeout=60,
    )  # fmt: skip
    (tmp_path / "mesh.toml").write_text(made.stdout)
    ports = free_ports(3)
    flags = [f"--{name}-port={port}" for name, port in zip(("gateway", "scheduler", "worker"), ports, strict=True)]
    # Everything that others could reach is there, so they may.
    keys = ["--gateway-host=0.0.0.0", "--scheduler-host=0.0.0.0", f"--tenants-store={tmp_path}/tenants.db"]
    key = subprocess.run(
        [sys.executable, "-m", "tercet", "tenant", "add", "alice", keys[-1]],
        capture_output=True, text=True, check=True, cwd=ROOT, timeout=60,
    ).stdout.strip()  # fmt: skip
    command = [sys.executable, "-m", "tercet", "up", "--config", str(tmp_path / "mesh.toml"), *flags, *keys]
    with subprocess.Popen(
        [*command, "--kv-cache-memory=192MiB"], stdout=subprocess.PIPE, text=True, cwd=ROOT, stderr=subprocess.STDOUT
    ) as process:
        try:
            assert process.stdout is not None
            seen = []
            for line in process.stdout:
                seen.append(line)
                if line.startswith("ready: "):
                    break
            assert any(f"--address 127.0.0.1:{ports[0]} --tls-ca" in line for line in seen), "".join(seen)
            assert not any("warning" in line for line in seen)
            done = subprocess.run(
                [sys.executable, "-m", "tercet", "generate", "Hi", "--max-tokens=3", f"--address=127.0.0.1:{ports[0]}"],
                env={**os.environ, "TERCET_API_KEY": key, "TERCET_CA": str(tmp_path / "pki" / "ca.pem")},
                capture_output=True, text=True, cwd=ROOT, timeout=60,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.strip()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
    assert process.returncode == 0
