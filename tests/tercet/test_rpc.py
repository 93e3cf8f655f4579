import asyncio
import contextlib
from pathlib import Path

import grpc
import pytest
from google.rpc import status_pb2
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tercet import error_status, errors
from tercet.ports import free_ports
from tercet.rpc import CHANNEL_OPTIONS, SERVER_OPTIONS, Server, abort, keepalive, open_channel, server_options
from tercet.v1 import models_pb2, models_pb2_grpc


class _Models(models_pb2_grpc.ModelsServicer):
    async def ListModels(self, request, context):
        await abort(context, errors.NoWorkerError("nobody home", metadata={"model": "m"}, retry_after_s=0.25))

    async def GetModel(self, request, context):
        return models_pb2.Model(name=request.name)


@pytest.fixture
async def running():
    server = Server()
    models_pb2_grpc.add_ModelsServicer_to_server(_Models(), server.grpc_server)
    port = await server.start("127.0.0.1", 0, [models_pb2.DESCRIPTOR], key="gateway.port")
    async with open_channel(f"127.0.0.1:{port}") as channel:
        yield server, port, channel
    await server.stop(0)


async def test_a_port_in_use_names_the_setting(running):
    _, port, _ = running
    second = Server()
    with pytest.raises(errors.ConfigError) as caught:
        await second.start("127.0.0.1", port, [models_pb2.DESCRIPTOR], key="worker.port")
    assert caught.value.key == "worker.port"
    assert str(port) in str(caught.value)
    await second.stop(0)


async def test_an_address_of_another_host_names_the_setting():
    server = Server()
    with pytest.raises(errors.ConfigError) as caught:
        await server.start("192.0.2.1", 0, [models_pb2.DESCRIPTOR], key="worker.port")
    assert caught.value.key == "worker.port"
    await server.stop(0)


async def test_a_typed_error_ends_the_call_with_details_and_without_initial_metadata(running):
    _, _, channel = running
    call = models_pb2_grpc.ModelsStub(channel).ListModels(models_pb2.ListModelsRequest())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    trailers = dict(caught.value.trailing_metadata())
    assert trailers["grpc-retry-pushback-ms"] == "250"
    error = error_status.from_status(status_pb2.Status.FromString(trailers["grpc-status-details-bin"]))
    assert isinstance(error, errors.NoWorkerError)
    assert error.retry_after_s == 0.25


async def test_health_follows_the_service(running):
    server, _, channel = running
    stub = health_pb2_grpc.HealthStub(channel)

    async def status(name: str) -> int:
        return (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status

    assert await status("") == health_pb2.HealthCheckResponse.SERVING
    assert await status("tercet.v1.Models") == health_pb2.HealthCheckResponse.SERVING
    server.set_serving("tercet.v1.Models", False)
    assert await status("tercet.v1.Models") == health_pb2.HealthCheckResponse.NOT_SERVING
    assert await status("") == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await status("no.such.Service")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_reflection_lists_and_describes(running):
    _, _, channel = running
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="tercet.v1.Models"),
    ]
    listed, described = [reply async for reply in stub.ServerReflectionInfo(iter(requests))]
    names = {service.name for service in listed.list_services_response.service}
    assert {"tercet.v1.Models", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= names
    assert described.file_descriptor_response.file_descriptor_proto


async def test_a_message_above_four_megabytes_passes(running):
    _, _, channel = running
    name = "x" * (5 * 1024 * 1024)
    assert (await models_pb2_grpc.ModelsStub(channel).GetModel(models_pb2.GetModelRequest(name=name))).name == name


async def test_stop_says_not_serving_and_ends(running):
    server, port, _ = running
    await asyncio.wait_for(server.stop(0), 10)
    again = Server()
    assert await again.start("127.0.0.1", port, [models_pb2.DESCRIPTOR], key="gateway.port") == port
    await again.stop(0)


class BlackHole:
    """Between a client and a server: at first it hands on every byte, then none, and nobody is told."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._silent = False
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "BlackHole":
        self._listener = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.close()

    def open(self) -> None:
        self._silent = True

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        self._writers += [writer, server_writer]
        for source, target in ((reader, server_writer), (server_reader, writer)):
            self._tasks.add(asyncio.create_task(self._hand_on(source, target)))

    async def _hand_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            if not self._silent:
                target.write(data)


def impatient(options):
    # Of two options of one name the first counts.
    return [*keepalive(1.0, 1.0), *(option for option in options if option[0] not in dict(keepalive(1.0, 1.0)))]


@pytest.mark.parametrize("talking", [True, False])
async def test_both_ends_notice_that_the_other_is_gone(talking):
    served = asyncio.get_running_loop().create_future()

    async def talk(_, context):
        context.add_done_callback(lambda _: served.set_result(None))
        await context.write(b"hello")
        while True:
            if talking:
                # So that gRPC measures the bandwidth, with pings of its own.
                await context.write(bytes(1000))
            await asyncio.sleep(0.002)

    server = Server(impatient(SERVER_OPTIONS))
    methods = {"Talk": grpc.stream_stream_rpc_method_handler(talk)}
    server.grpc_server.add_registered_method_handlers("Talker", methods)
    port = await server.start("127.0.0.1", 0, [models_pb2.DESCRIPTOR], key="gateway.port")
    async with BlackHole(port) as between:
        address = f"127.0.0.1:{between.port}"
        async with grpc.aio.insecure_channel(address, options=impatient(CHANNEL_OPTIONS)) as channel:
            call = channel.stream_stream("/Talker/Talk")()
            for _ in range(100 if talking else 1):
                await call.read()
            between.open()

            async def lost() -> None:
                while await call.read() is not grpc.aio.EOF:
                    pass

            # Left to itself gRPC takes a minute where it had sent a ping, and for ever on the server's side.
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(lost(), 30)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            await asyncio.wait_for(served, 30)
    await server.stop(0)


@pytest.mark.parametrize("name", sorted({name for name, _ in [*server_options(), *CHANNEL_OPTIONS]}))
def test_the_core_knows_every_option(name):
    # A name that it does not know is ignored without a word.
    assert name.encode() in Path(cygrpc.__file__).read_bytes()


async def test_servers_that_share_a_port_share_connections():
    (shared,) = free_ports(1)
    servers = [Server(server_options(shares=True)) for _ in range(2)]
    try:
        for index, server in enumerate(servers):
            await server.start("127.0.0.1", 0, [], key="gateway.port", shared_port=shared)
            server.set_serving(f"number-{index}", True)
        seen = set()
        for _ in range(64):
            async with open_channel(f"127.0.0.1:{shared}") as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                for index in range(2):
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        await stub.Check(health_pb2.HealthCheckRequest(service=f"number-{index}"), timeout=10)
                        seen.add(index)
        assert seen == {0, 1}
        # One that shares with nobody is refused.
        with pytest.raises(errors.ConfigError, match=rf"gateway\.port: cannot listen on 127\.0\.0\.1:{shared}"):
            await Server().start("127.0.0.1", shared, [], key="gateway.port")
    finally:
        for server in servers:
            await server.stop(0)
