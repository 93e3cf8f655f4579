"""The scheduler as gateways and workers meet it: real gRPC, a simulated worker behind a real server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from worker_server import WorkerServer

from scheduler import service
from scheduler.server import _cancel, serve
from scheduler.simulator.small import worker_info
from scheduler.simulator.text import VOCAB, run_alone
from tercet import rpc
from tercet.errors import ConfigError
from tercet.mesh.v1 import scheduler_pb2, scheduler_pb2_grpc, sequence_pb2
from tercet.sections import MeshConfig, SchedulerSettings
from tercet.v1 import operations_pb2

pytestmark = pytest.mark.timeout(60)


class Gateway:
    """A gateway reduced to its stream."""

    def __init__(self, port: int, **says: bool) -> None:
        self.says = says
        self.channel = rpc.open_channel(f"127.0.0.1:{port}")
        self.stub: Any = scheduler_pb2_grpc.SchedulerStub(self.channel)
        self.call = self.stub.Attach()
        self.epoch = 0

    async def __aenter__(self) -> Gateway:
        hello = scheduler_pb2.GatewayHello(gateway_id="gateway-test", **self.says)
        await self.call.write(scheduler_pb2.GatewayMessage(hello=hello))
        self.epoch = (await self.read("hello")).epoch
        return self

    async def __aexit__(self, *_: object) -> None:
        self.call.cancel()
        await self.channel.close()

    async def read(self, kind: str) -> Any:
        """The next message, which has to be of that kind."""
        message = await asyncio.wait_for(self.call.read(), 20)
        assert message is not grpc.aio.EOF, "the stream ended"
        assert message.WhichOneof("message") == kind, message
        return getattr(message, kind)

    async def pools_live(self, count: int) -> Any:
        """Reads pool updates until that many workers are live."""
        while True:
            update = await self.read("pools")
            if sum(pool.workers_live for pool in update.pools) == count:
                return update

    async def submit(self, key: int, prompt: list[int], max_tokens: int = 8, **fields: Any) -> None:
        values = {"model": "tiny", "model_revision": "r1", **fields}
        submit = scheduler_pb2.Submit(
            request_key=key, request_id=f"req-{key}", prompt_token_ids=prompt, max_tokens=max_tokens, **values
        )
        await self.call.write(scheduler_pb2.GatewayMessage(submit=submit))

    async def cancel(self, key: int) -> None:
        cancel = scheduler_pb2.Cancel(request_key=key, reason=sequence_pb2.CANCEL_REASON_CLIENT)
        await self.call.write(scheduler_pb2.GatewayMessage(cancel=cancel))

    async def finish(self) -> tuple[list[int], Any]:
        """Tokens and end of the only request that runs; pool updates are skipped."""
        tokens: list[int] = []
        while True:
            message = await asyncio.wait_for(self.call.read(), 20)
            assert message is not grpc.aio.EOF, "the stream ended"
            if message.WhichOneof("message") == "pools":
                continue
            tokens += message.tokens.token_ids
            if message.tokens.ends:
                return tokens, message.tokens.ends[0]


@contextlib.asynccontextmanager
async def running(workers: tuple[str, ...], **changes: Any) -> AsyncIterator[int]:
    """A scheduler on a free port."""
    settings = SchedulerSettings(port=0, workers=workers, **changes)
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(MeshConfig(scheduler=settings), port.set_result))
    await asyncio.wait({task, port}, return_when=asyncio.FIRST_COMPLETED)
    try:
        yield port.result()
    finally:
        if not task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(task, 20)


async def test_a_gateway_that_says_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "HELLO_SECONDS", 0.05)
    async with running(("127.0.0.1:1",)) as port, rpc.open_channel(f"127.0.0.1:{port}") as channel:
        call = scheduler_pb2_grpc.SchedulerStub(channel).Attach()
        assert await asyncio.wait_for(call.code(), 20) is grpc.StatusCode.DEADLINE_EXCEEDED
        # One that says hello in time is not.
        monkeypatch.setattr(service, "HELLO_SECONDS", 1.0)
        async with Gateway(port) as gateway:
            await asyncio.sleep(1.1)
            await gateway.submit(1, [1])
            assert (await gateway.read("pools")).pools == []
            await gateway.read("refused")


@pytest.fixture
async def worker() -> AsyncIterator[WorkerServer]:
    server = WorkerServer(worker_info())
    await server.start()
    yield server
    await server.kill()


@contextlib.asynccontextmanager
async def mesh(worker: WorkerServer, **changes: Any) -> AsyncIterator[tuple[Gateway, int]]:
    """A scheduler with one live worker, and a gateway on it."""
    async with running((f"127.0.0.1:{worker.port}",), **changes) as port, Gateway(port) as gateway:
        await gateway.pools_live(1)
        yield gateway, port


async def eventually(condition: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
    for _ in range(1000):
        result = condition()
        if result if isinstance(result, bool) else await result:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("did not come about")


async def test_a_request_streams(worker: WorkerServer) -> None:
    async with mesh(worker) as (gateway, _):
        assert gateway.epoch > 0
        await gateway.submit(7, [1, 2, 3], 20)
        accepted = await gateway.read("accepted")
        assert accepted.request_key == 7
        assert accepted.queue_position == 0
        tokens, end = await gateway.finish()
        assert tokens == run_alone((1, 2, 3), 20, (), 0)[0]
        assert end.sequence_id == accepted.sequence_ids[0]
        assert end.reason == sequence_pb2.END_REASON_LENGTH
        assert end.account.blocks_used == end.account.blocks_freed == 6


async def test_many_requests_at_once_keep_apart(worker: WorkerServer) -> None:
    async with mesh(worker) as (gateway, _):
        prompts = {key: [key % VOCAB, 2, 3, key % 7] for key in range(1, 33)}
        for key, prompt in prompts.items():
            await gateway.submit(key, prompt, 12)
        key_of: dict[int, int] = {}
        got: dict[int, list[int]] = {key: [] for key in prompts}
        ended = 0
        while ended < len(prompts):
            message = await asyncio.wait_for(gateway.call.read(), 20)
            if message.WhichOneof("message") == "accepted":
                key_of[message.accepted.sequence_ids[0]] = message.accepted.request_key
                continue
            for sequence_id, token in zip(message.tokens.sequence_ids, message.tokens.token_ids, strict=True):
                got[key_of[sequence_id]].append(token)
            ended += len(message.tokens.ends)
        for key, prompt in prompts.items():
            assert got[key] == run_alone(tuple(prompt), 12, (), 0)[0]


async def test_cancel_frees_the_blocks(worker: WorkerServer) -> None:
    async with mesh(worker) as (gateway, _):
        await gateway.submit(1, [1, 2, 3], 100)
        await gateway.read("accepted")
        await gateway.read("tokens")
        await gateway.cancel(1)
        while (message := await asyncio.wait_for(gateway.call.read(), 20)).WhichOneof("message") == "tokens":
            assert not message.tokens.ends
        assert message.cancel_done.found
        assert message.cancel_done.account.blocks_freed > 0
        assert worker.worker is not None
        assert worker.worker.pool.counts.used == 0
        await gateway.cancel(1)
        assert not (await gateway.read("cancel_done")).found


async def test_refusals_are_typed_and_in_band(worker: WorkerServer) -> None:
    async with mesh(worker) as (gateway, _):
        cases: list[tuple[str, list[int], int, dict[str, Any]]] = [
            ("MODEL_NOT_FOUND", [1], 1, {"model": "other"}),
            ("REVISION_MISMATCH", [1], 1, {"model_revision": "r0"}),
            ("INVALID_FIELD", [], 1, {}),
            ("INVALID_FIELD", [1], 0, {}),
            ("INVALID_FIELD", [VOCAB], 1, {}),
            ("PROMPT_TOO_LONG", [1] * 128, 1, {}),
            ("DEADLINE_PASSED", [1], 1, {"deadline_ms": 0}),
        ]
        for key, (reason, prompt, max_tokens, fields) in enumerate(cases):
            await gateway.submit(key, prompt, max_tokens, **fields)
            refused = await gateway.read("refused")
            assert (refused.request_key, refused.failure.reason) == (key, reason)


async def test_a_deadline_ends_a_running_request(worker: WorkerServer) -> None:
    worker.step_seconds = 0.02
    async with mesh(worker) as (gateway, _):
        await gateway.submit(1, [1, 2, 3], 100, deadline_ms=150)
        await gateway.read("accepted")
        tokens, end = await gateway.finish()
        assert 0 < len(tokens) < 100
        assert end.reason == sequence_pb2.END_REASON_CANCELLED
        assert end.failure.reason == "DEADLINE_PASSED"


@pytest.mark.parametrize("takes_cancels_done", [True, False])
async def test_many_cancels_in_one_message_are_each_answered(worker: WorkerServer, takes_cancels_done: bool) -> None:
    async with (
        running((f"127.0.0.1:{worker.port}",)) as port,
        Gateway(port, takes_cancels_done=takes_cancels_done) as gateway,
    ):
        await gateway.pools_live(1)
        for key in range(1, 5):
            await gateway.submit(key, [1, 2, 3], 100)
        cancels = [scheduler_pb2.Cancel(request_key=key) for key in range(1, 6)]
        await gateway.call.write(scheduler_pb2.GatewayMessage(cancels=scheduler_pb2.Cancels(cancels=cancels)))
        found: dict[int, bool] = {}
        while len(found) < 5:
            message = await asyncio.wait_for(gateway.call.read(), 20)
            assert message is not grpc.aio.EOF
            assert message.WhichOneof("message") != ("cancel_done" if takes_cancels_done else "cancels_done")
            done = [message.cancel_done] if message.HasField("cancel_done") else message.cancels_done.done
            for each in done:
                assert each.request_key not in found
                found[each.request_key] = each.found
        assert found == {1: True, 2: True, 3: True, 4: True, 5: False}
        fleet = await gateway.stub.GetFleet(operations_pb2.GetFleetRequest())
        assert [each.blocks_used for each in fleet.workers] == [0]


async def test_a_lost_gateway_cancels_what_it_asked_for(worker: WorkerServer) -> None:
    async with running((f"127.0.0.1:{worker.port}",)) as port:
        async with Gateway(port) as gateway:
            await gateway.pools_live(1)
            await gateway.submit(1, [1, 2, 3], 100)
            await gateway.read("accepted")
            await gateway.read("tokens")
        assert worker.worker is not None
        sequences = worker.worker.sequences
        await eventually(lambda: not sequences)
        assert worker.worker.pool.counts.used == 0


async def test_a_worker_killed_and_back_is_a_pause(worker: WorkerServer) -> None:
    worker.step_seconds = 0.01
    async with mesh(worker) as (gateway, _):
        await gateway.submit(1, [1, 2, 3], 60)
        await gateway.read("accepted")
        first = list((await gateway.read("tokens")).token_ids)
        await worker.kill()
        await worker.start()
        tokens, end = await gateway.finish()
        assert first + tokens == run_alone((1, 2, 3), 60, (), 0)[0]
        assert end.reason == sequence_pb2.END_REASON_LENGTH
        assert len(worker.epochs) == 2
        assert worker.epochs[1] == worker.epochs[0]


async def test_a_worker_that_stays_away_ends_its_requests(worker: WorkerServer) -> None:
    async with mesh(worker, worker_grace_seconds=0.3) as (gateway, _):
        await gateway.submit(1, [1, 2, 3], 100)
        await gateway.read("accepted")
        first = await gateway.read("tokens")
        await worker.kill()
        tokens, end = await gateway.finish()
        assert end.reason == sequence_pb2.END_REASON_FAILED
        assert end.failure.reason == "WORKER_LOST"
        assert end.failure.metadata["tokens_emitted"] == str(len(first.token_ids) + len(tokens))
        await gateway.submit(2, [1, 2, 3], 8)
        refused = await gateway.read("refused")
        assert refused.failure.reason == "NO_WORKER"
        assert refused.failure.retry_after_ms > 0


async def test_without_any_worker_requests_are_refused() -> None:
    async with running(("127.0.0.1:1",)) as port, Gateway(port) as gateway:
        assert not (await gateway.read("pools")).pools
        await gateway.submit(1, [1], 1)
        refused = await gateway.read("refused")
        assert refused.failure.reason == "NO_WORKER"
        assert refused.failure.HasField("retry_after_ms")


async def test_a_worker_is_found_by_a_name(worker: WorkerServer) -> None:
    async with running((f"dns://localhost:{worker.port}",), resolve_seconds=0.1) as port, Gateway(port) as gateway:
        await gateway.pools_live(1)
        await gateway.submit(1, [1, 2, 3], 20)
        await gateway.read("accepted")
        assert (await gateway.finish())[0] == run_alone((1, 2, 3), 20, (), 0)[0]
        await gateway.submit(2, [1], 1, model="other")
        # ::1 of localhost may be dialled without an answer: then nobody knows what it would serve.
        assert (await gateway.read("refused")).failure.reason in ("MODEL_NOT_FOUND", "NO_WORKER")


async def test_behind_a_name_that_does_not_resolve_may_be_any_model(worker: WorkerServer) -> None:
    entries = (f"127.0.0.1:{worker.port}", "dns://no.such.host.invalid:50053")
    async with running(entries) as port, Gateway(port) as gateway:
        await gateway.pools_live(1)
        await gateway.submit(1, [1], 1, model="other")
        assert (await gateway.read("refused")).failure.reason == "NO_WORKER"
        fleet = await gateway.stub.GetFleet(operations_pb2.GetFleetRequest())
        assert [(each.address, each.live) for each in fleet.workers] == [(entries[0], True), (entries[1], False)]


@pytest.mark.parametrize("what", ["submission_from_proto", "messages_to_proto"])
async def test_a_bug_at_one_stream_is_logged_and_ends_that_stream_alone(
    worker: WorkerServer, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **_options: object) -> None:
        raise ValueError("a bug")

    async with mesh(worker) as (other, port), Gateway(port) as gateway:
        await gateway.pools_live(1)
        with structlog.testing.capture_logs() as logs, monkeypatch.context() as patch:
            patch.setattr(f"scheduler.service.{what}", fail)
            await gateway.submit(1, [1, 2, 3])
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                while await asyncio.wait_for(gateway.call.read(), 20) is not grpc.aio.EOF:
                    pass
                await gateway.finish()
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        (event,) = [event for event in logs if event["event"] == "gateway_stream_failed"]
        assert isinstance(event["exc_info"], ValueError)
        await other.submit(1, [1, 2, 3])
        await other.read("accepted")
        assert (await other.finish())[1].reason == sequence_pb2.END_REASON_LENGTH


async def test_the_fleet_is_visible(worker: WorkerServer) -> None:
    async with mesh(worker) as (gateway, _):
        await gateway.submit(1, [1, 2, 3], 8)
        await gateway.read("accepted")
        await gateway.finish()
        fleet = await gateway.stub.GetFleet(operations_pb2.GetFleetRequest())
        assert fleet.requests_finished == 1
        (status,) = fleet.workers
        assert status.live
        assert status.model == "tiny"
        assert status.tokens == 8
        assert status.blocks_free + status.blocks_cached == status.blocks_total == 32


async def test_health_and_reflection(worker: WorkerServer) -> None:
    async with mesh(worker) as (_, port):
        async with rpc.open_channel(f"127.0.0.1:{port}") as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            for name in ("", "tercet.mesh.v1.Scheduler"):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING

        def services() -> list[str]:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                return list(ProtoReflectionDescriptorDatabase(channel).get_services())

        assert "tercet.mesh.v1.Scheduler" in await asyncio.to_thread(services)


async def test_a_stream_that_does_not_greet_is_refused(worker: WorkerServer) -> None:
    async with running((f"127.0.0.1:{worker.port}",)) as port:
        gateway = Gateway(port)
        await gateway.cancel(1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await gateway.call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await gateway.channel.close()


async def test_a_signal_lets_running_requests_end(worker: WorkerServer) -> None:
    worker.step_seconds = 0.01
    async with mesh(worker) as (gateway, _):
        await gateway.submit(1, [1, 2, 3], 30)
        await gateway.read("accepted")
        first = list((await gateway.read("tokens")).token_ids)
        with structlog.testing.capture_logs() as logs:
            os.kill(os.getpid(), signal.SIGTERM)
            await eventually(lambda: any(event["event"] == "scheduler_draining" for event in logs))
        await gateway.submit(2, [1], 1)
        tokens, refused = first, None
        while True:
            message = await asyncio.wait_for(gateway.call.read(), 20)
            if message.WhichOneof("message") == "refused":
                refused = message.refused.failure.reason
                continue
            tokens += message.tokens.token_ids
            if message.tokens.ends:
                break
        assert refused == "DRAINING"
        assert tokens == run_alone((1, 2, 3), 30, (), 0)[0]
        # The stream is the gateway's to end, who knows what it has read.
        assert (await asyncio.wait_for(gateway.call.read(), 20)).WhichOneof("message") == "goodbye"
        await gateway.submit(3, [1], 1)
        gateway.call.cancel()


async def test_a_gateway_of_several_schedulers_is_told_where_this_one_stands(worker: WorkerServer) -> None:
    async with running((f"127.0.0.1:{worker.port}",)) as port, Gateway(port, hands_over=True) as gateway:
        said: list[Any] = []
        while not (said and said[-1].term):
            message = await asyncio.wait_for(gateway.call.read(), 20)
            said += [message.standing] if message.HasField("standing") else []
        assert said[-1].started == gateway.epoch
        os.kill(os.getpid(), signal.SIGTERM)
        while not said[-1].leaving:
            message = await asyncio.wait_for(gateway.call.read(), 20)
            said += [message.standing] if message.HasField("standing") else []


async def test_a_gateway_that_does_not_hear_goodbye_is_left(worker: WorkerServer) -> None:
    async with mesh(worker) as (gateway, _):
        os.kill(os.getpid(), signal.SIGTERM)
        assert (await asyncio.wait_for(gateway.call.read(), 20)).WhichOneof("message") == "goodbye"
        with pytest.raises(grpc.aio.AioRpcError):
            assert await asyncio.wait_for(gateway.call.read(), 20) is not grpc.aio.EOF


async def test_a_request_that_outlives_the_drain_gets_its_end(worker: WorkerServer) -> None:
    worker.step_seconds = 0.05
    async with mesh(worker, drain_seconds=0.1) as (gateway, _):
        await gateway.submit(1, [1, 2, 3], 100)
        await gateway.read("accepted")
        os.kill(os.getpid(), signal.SIGTERM)
        _, end = await gateway.finish()
        assert end.reason == sequence_pb2.END_REASON_CANCELLED
        assert end.failure.reason == "DRAINING"


async def test_a_port_in_use_names_its_key(worker: WorkerServer) -> None:
    settings = SchedulerSettings(port=worker.port, workers=("127.0.0.1:1",))
    with pytest.raises(ConfigError, match=r"scheduler\.port"):
        await serve(MeshConfig(scheduler=settings))


async def test_a_task_that_loses_a_cancel_is_cancelled_again() -> None:
    """As a dial does that fails at that moment: it goes on to wait for the next."""
    lost = asyncio.Event()

    async def dials() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            lost.set()
        await asyncio.sleep(3600)

    task = asyncio.create_task(dials())
    await asyncio.sleep(0)
    await asyncio.wait_for(_cancel([task]), 10)
    assert lost.is_set()
    assert task.cancelled()
