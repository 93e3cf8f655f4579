"""Channels that follow the certificates."""

from __future__ import annotations

import asyncio
import contextlib
import shutil

import certificates
import grpc.aio
import pytest

from tercet.dialer import Dialer
from tercet.ports import free_ports
from tercet.rpc import Server
from tercet.tls.mesh import mesh_identity
from tercet.v1 import models_pb2, models_pb2_grpc


class Models(models_pb2_grpc.ModelsServicer):
    async def GetModel(self, request, context):
        return models_pb2.Model(name=request.name)


@contextlib.asynccontextmanager
async def worker(settings, port):
    """A server with a worker's certificate, for schedulers."""
    server = Server(tls=mesh_identity(settings, "worker").listening_to("scheduler"))
    models_pb2_grpc.add_ModelsServicer_to_server(Models(), server.grpc_server)
    await server.start("127.0.0.1", port, [models_pb2.DESCRIPTOR], key="worker.port")
    yield
    await server.stop(0)


async def asked(channel: grpc.aio.Channel) -> str:
    stub = models_pb2_grpc.ModelsStub(channel)
    return (await stub.GetModel(models_pb2.GetModelRequest(name="m"), timeout=20)).name


@pytest.fixture
def settings(tmp_path):
    certificates.make(tmp_path / "pki")
    return certificates.settings(tmp_path / "pki")


async def test_without_tls_the_channel_stays():
    dialer = Dialer("127.0.0.1:1", "worker", None)
    channel = dialer.channel
    await dialer.renew()
    assert dialer.channel is channel
    await dialer.close()


async def test_a_channel_lasts_as_long_as_its_certificates(settings, tmp_path):
    [port] = free_ports(1)
    dialer = Dialer(f"127.0.0.1:{port}", "worker", mesh_identity(settings, "scheduler"))
    async with worker(settings, port):
        first = await dialer.connected()
        assert await asked(first) == "m"
        assert await dialer.connected() is first
        certificates.issue(certificates.Authority(tmp_path / "pki"))
        # What runs on it goes on; it is only at the next dial that it is another one.
        assert await asked(first) == "m"
        second = await dialer.connected()
        assert second is not first
        assert await asked(second) == "m"
    await dialer.close()


async def test_who_waits_with_old_certificates_gets_the_new_ones(settings, tmp_path, monkeypatch):
    monkeypatch.setattr("tercet.dialer.LOOK_SECONDS", 0.1)
    [port] = free_ports(1)
    dialer = Dialer(f"127.0.0.1:{port}", "worker", mesh_identity(settings, "scheduler"))
    shutil.copytree(tmp_path / "pki", tmp_path / "old")
    shutil.rmtree(tmp_path / "pki")
    certificates.make(tmp_path / "new")
    async with worker(certificates.settings(tmp_path / "new"), port):
        waiting = asyncio.create_task(dialer.connected())
        await asyncio.sleep(0.5)
        assert not waiting.done()
        shutil.copytree(tmp_path / "new", tmp_path / "pki")
        assert await asked(await asyncio.wait_for(waiting, 20)) == "m"
    await dialer.close()


async def test_a_wait_for_a_connection_can_be_given_up():
    dialer = Dialer("127.0.0.1:1", "worker", None)
    waiting = asyncio.create_task(dialer.connected())
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await dialer.close()


async def test_two_cas_know_each_other_while_one_takes_over(settings, tmp_path):
    certificates.make(tmp_path / "new")
    both = (tmp_path / "pki" / "ca.pem").read_bytes() + (tmp_path / "new" / "ca.pem").read_bytes()
    for folder in ("pki", "new"):
        (tmp_path / folder / "ca.pem").write_bytes(both)
    [port] = free_ports(1)
    dialer = Dialer(f"127.0.0.1:{port}", "worker", mesh_identity(settings, "scheduler"))
    async with worker(certificates.settings(tmp_path / "new"), port):
        assert await asked(await dialer.connected()) == "m"
    await dialer.close()
