"""A gateway in the test's own event loop, in front of a scheduler whose tokens the test decides."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import tokenizers
from grpc_health.v1 import health_pb2_grpc
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from gateway import server
from gateway.served_model import ServedModel, load_model
from tercet import errors, rpc
from tercet.health import NAMES
from tercet.health_service import HealthService
from tercet.mesh.v1 import scheduler_pb2 as pb
from tercet.mesh.v1 import scheduler_pb2_grpc, sequence_pb2
from tercet.sections import GatewaySettings, LedgerSettings, MeshConfig, ModelSettings
from tercet.tenants.kept import says_kept
from tercet.v1 import inference_pb2_grpc, models_pb2, models_pb2_grpc, operations_pb2, operations_pb2_grpc

from .guarded_gateway import GuardedGateway, guarded_gateway

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MAX_MODEL_LEN = 256


def make_byte_tokenizer() -> tokenizers.Tokenizer:
    """One token per byte, ids 0..255, a few merged words, then specials."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    specials = ["<s>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in specials])
    return backend


def write_model(path: Path, **changes: Any) -> Path:
    """A Hugging Face directory as far as a gateway reads it. `changes` replace whole files; None leaves one out."""
    files: dict[str, Any] = {
        "config.json": {"vocab_size": 280, "max_position_embeddings": MAX_MODEL_LEN, "eos_token_id": 261},
        "generation_config.json": {"temperature": 0.5, "top_k": 7},
        "tokenizer_config.json": {"bos_token": "<s>", "eos_token": "<|end|>", "chat_template": CHAT_TEMPLATE},
        "tokenizer.json": make_byte_tokenizer().to_str(),
    }
    path.mkdir(parents=True, exist_ok=True)
    for name, content in {**files, **{key.replace("__", "."): value for key, value in changes.items()}}.items():
        if content is not None:
            (path / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "bytes")


@pytest.fixture(scope="session")
def model(model_path: Path) -> ServedModel:
    return load_model(ModelSettings(model=str(model_path), served_model_name=("bytes", "alias")))


Outgoing = asyncio.Queue[pb.SchedulerMessage]


class FakeSequence:
    """One request at the fake scheduler, as its first sequence; `outputs` are all of its sequences, this one first."""

    def __init__(self, outgoing: Outgoing, submit: pb.Submit, sequence_id: int) -> None:
        self.submit = submit
        self.sequence_id = sequence_id
        self.outputs: list[FakeSequence] = [self]
        self.cancelled = asyncio.Event()
        self.cancel_reason: int | None = None
        # Set when its StopSequence came.
        self.stopped = asyncio.Event()
        self.stop_reason: int | None = None
        # Each Pause (True) and Unpause (False) that came.
        self.pauses: list[bool] = []
        self.paused = asyncio.Event()
        self.unpaused = asyncio.Event()
        self.ended = False
        # To the gateway that it is of.
        self.outgoing = outgoing

    async def tokens(
        self, *token_ids: int, end: pb.SequenceEnd | None = None, logprobs: Sequence[sequence_pb2.TokenLogprobs] = ()
    ) -> None:
        """One message with these tokens and perhaps the end."""
        sequence_ids = [self.sequence_id] * len(token_ids)
        batch = pb.TokenBatch(sequence_ids=sequence_ids, token_ids=token_ids, logprobs=logprobs)
        if end is not None:
            self.ended = True
            end.sequence_id = self.sequence_id
            batch.ends.append(end)
        self.outgoing.put_nowait(pb.SchedulerMessage(tokens=batch))

    async def end(self, reason: int, **fields: Any) -> None:
        """The end alone."""
        await self.tokens(end=sequence_end(reason, **fields))


def sequence_end(reason: int, **fields: Any) -> pb.SequenceEnd:
    account = pb.Account(cached_tokens=3, blocks_used=5, blocks_freed=4, queue_us=2000)
    return pb.SequenceEnd(reason=reason, account=account, **fields)


def cancel_trail(reason: int) -> pb.CancelTrail:
    states = [pb.SEQUENCE_STATE_DECODE]
    return pb.CancelTrail(reason=reason, states=states, release_us=1_000, freed_us=250_000, late_gpu_us=500_000)


class FakeScheduler(scheduler_pb2_grpc.SchedulerServicer):
    """A real gRPC server that speaks tercet.mesh.v1.Scheduler to any number of gateways; `play` scripts each admitted
    request."""

    def __init__(self, model: ServedModel, port: int = 0) -> None:
        self.model = model
        self.port = port
        self.epoch = 1
        self.workers_live = 1
        self.max_model_len = self.max_sequence_len = 0
        self.name, self.revision = model.name, model.revision
        self.complete = False
        self.other_pools: list[pb.Pool] = []
        self.refuse: sequence_pb2.Failure | None = None
        self.accept = True
        self.answer_cancels = True
        self.takes_cancels = True
        self.most_outputs: int | None = None
        self.forecast_us: int | None = None
        # Class and targets of accepted requests.
        self.promise: dict[str, Any] = {}
        self.plan_log: list[bytes] = []
        self.plan_log_failure: errors.RequestError | None = None
        self.traffic_failure: errors.RequestError | None = None
        self.plan_log_left = asyncio.Event()
        self.parts_sent = 0
        self.dump: Callable[[Any, Any], AsyncIterator[operations_pb2.PlanLogPart]] = self.send_plan_log
        self.tenants: list[pb.TenantUpdate] = []
        # Of each call for an operator, whether the gateway said that it asks for keys.
        self.guarded: list[bool] = []
        self.refusals: list[pb.RefusalCount] = []
        # What the gateway said was running, each time.
        self.running: list[list[int]] = []
        self.sequences: list[FakeSequence] = []
        self.submitted = asyncio.Event()
        self.play: Callable[[FakeSequence], Awaitable[None]] = self.echo
        self.health = HealthService()
        self.health.tell(dict.fromkeys(NAMES, ()))
        # To each gateway that is attached.
        self._outgoing: list[Outgoing] = []
        self._tasks: set[asyncio.Future[None]] = set()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = grpc.aio.server(options=rpc.SERVER_OPTIONS)
        scheduler_pb2_grpc.add_SchedulerServicer_to_server(self, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def send(self, message: pb.SchedulerMessage) -> None:
        """To all gateways."""
        for outgoing in self._outgoing:
            outgoing.put_nowait(message)

    async def send_pools(self) -> None:
        await self.send(self._pools())

    def _pools(self) -> pb.SchedulerMessage:
        pool = pb.Pool(
            model=self.name,
            model_revision=self.revision,
            workers_live=self.workers_live,
            max_model_len=self.max_model_len,
            max_sequence_len=self.max_sequence_len,
        )
        # Before and after it, so that no order is the right one by chance.
        pools = [*self.other_pools[:1], pool, *self.other_pools[1:]]
        return pb.SchedulerMessage(pools=pb.PoolUpdate(pools=pools, complete=self.complete))

    async def send_standing(self, term: int) -> None:
        await self.send(pb.SchedulerMessage(standing=pb.Standing(started=1, term=term)))

    async def echo(self, sequence: FakeSequence) -> None:
        """Every output is the prompt again, a token each a message, then the model's end token or LENGTH."""
        limit = sequence.submit.max_tokens
        ids = [*sequence.submit.prompt_token_ids, *self.model.eos_token_ids][:limit]
        for token_id in ids:
            for output in sequence.outputs:
                await output.tokens(token_id)
            await asyncio.sleep(0)
        for output in sequence.outputs:
            if ids[-1] in sequence.submit.stop_token_ids:
                await output.end(sequence_pb2.END_REASON_STOP, stop_token_id=ids[-1])
            else:
                await output.end(sequence_pb2.END_REASON_LENGTH)

    async def Attach(
        self, requests: AsyncIterator[pb.GatewayMessage], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.SchedulerMessage]:
        hello = await anext(requests)
        assert hello.HasField("hello")
        yield pb.SchedulerMessage(hello=pb.SchedulerHello(epoch=self.epoch, takes_cancels=self.takes_cancels))
        outgoing: Outgoing = asyncio.Queue()
        outgoing.put_nowait(self._pools())
        self._outgoing.append(outgoing)
        reader = asyncio.create_task(self._read(requests, outgoing))
        try:
            while True:
                yield await outgoing.get()
        finally:
            reader.cancel()
            self._outgoing.remove(outgoing)

    async def GetFleet(self, request: Any, context: Any) -> operations_pb2.Fleet:
        self.guarded.append(says_kept(context.invocation_metadata()))
        return operations_pb2.Fleet(requests_running=len(self.sequences))

    async def GetTraffic(self, request: Any, context: Any) -> operations_pb2.Traffic:
        self.guarded.append(says_kept(context.invocation_metadata()))
        if self.traffic_failure is not None:
            await rpc.abort(context, self.traffic_failure)
        return operations_pb2.Traffic(epoch=self.epoch, uptime_seconds=2.5, tenants_omitted=request.max_tenants)

    async def DumpPlanLog(self, request: Any, context: Any) -> AsyncIterator[operations_pb2.PlanLogPart]:
        self.guarded.append(says_kept(context.invocation_metadata()))
        try:
            async for part in self.dump(request, context):
                yield part
        finally:
            self.plan_log_left.set()

    async def send_plan_log(self, request: Any, context: Any) -> AsyncIterator[operations_pb2.PlanLogPart]:
        """What `plan_log` holds, then `plan_log_failure`, if any."""
        for data in self.plan_log:
            yield operations_pb2.PlanLogPart(data=data)
            self.parts_sent += 1
        if self.plan_log_failure is not None:
            await rpc.abort(context, self.plan_log_failure)

    async def _read(self, requests: AsyncIterator[pb.GatewayMessage], outgoing: Outgoing) -> None:
        async for message in requests:
            if message.HasField("submit"):
                self._submit(message.submit, outgoing)
            elif message.HasField("stop_sequence"):
                await self._stop(message.stop_sequence)
            elif message.HasField("pause"):
                self._pause(message.pause.request_key, outgoing, True)
            elif message.HasField("unpause"):
                self._pause(message.unpause.request_key, outgoing, False)
            elif message.HasField("tenants"):
                self.tenants.append(message.tenants)
            elif message.HasField("refusals"):
                self.refusals += message.refusals.counts
            elif message.HasField("running"):
                self.running.append(list(message.running.request_keys))
            elif message.HasField("cancels"):
                assert self.takes_cancels
                for cancel in message.cancels.cancels:
                    self._cancel(cancel, outgoing)
            else:
                self._cancel(message.cancel, outgoing)

    def _submit(self, submit: pb.Submit, outgoing: Outgoing) -> None:
        first = 1000 * (1 + len(self.sequences))
        sequence = FakeSequence(outgoing, submit, first)
        sequence.outputs += [FakeSequence(outgoing, submit, first + index) for index in range(1, submit.n)]
        self.sequences.append(sequence)
        self.submitted.set()
        if self.refuse is not None:
            refused = pb.RequestRefused(request_key=submit.request_key, failure=self.refuse)
            outgoing.put_nowait(pb.SchedulerMessage(refused=refused))
        elif self.accept:
            accepted = pb.RequestAccepted(
                request_key=submit.request_key,
                sequence_ids=[output.sequence_id for output in sequence.outputs][: self.most_outputs],
                queue_position=2,
                forecast_us=self.forecast_us,
                **self.promise,
            )
            outgoing.put_nowait(pb.SchedulerMessage(accepted=accepted))
            task = asyncio.ensure_future(self.play(sequence))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _stop(self, stop: pb.StopSequence) -> None:
        all_outputs = [output for sequence in self.sequences for output in sequence.outputs]
        output = next(each for each in all_outputs if each.sequence_id == stop.sequence_id)
        output.stop_reason = stop.reason
        output.stopped.set()
        if self.answer_cancels and not output.ended:
            await output.end(sequence_pb2.END_REASON_CANCELLED, trail=cancel_trail(stop.reason))

    def _find(self, request_key: int, outgoing: Outgoing) -> FakeSequence:
        """Each gateway counts its requests by itself."""
        return next(s for s in self.sequences if s.submit.request_key == request_key and s.outgoing is outgoing)

    def _pause(self, request_key: int, outgoing: Outgoing, paused: bool) -> None:
        sequence = self._find(request_key, outgoing)
        sequence.pauses.append(paused)
        (sequence.paused if paused else sequence.unpaused).set()

    def _cancel(self, cancel: pb.Cancel, outgoing: Outgoing) -> None:
        sequence = self._find(cancel.request_key, outgoing)
        sequence.cancel_reason = cancel.reason
        sequence.cancelled.set()
        if self.answer_cancels:
            done = pb.CancelDone(request_key=cancel.request_key, found=not sequence.ended)
            if done.found:
                done.account.CopyFrom(pb.Account(blocks_used=9, blocks_freed=8, cached_tokens=7))
                done.trail.CopyFrom(cancel_trail(cancel.reason))
            outgoing.put_nowait(pb.SchedulerMessage(cancel_done=done))


@dataclasses.dataclass
class Gateway:
    """A running gateway and a client of it."""

    port: int
    channel: grpc.aio.Channel
    stopping: asyncio.Event
    task: asyncio.Task[None]

    @property
    def inference(self) -> Any:
        return inference_pb2_grpc.InferenceStub(self.channel)

    @property
    def models(self) -> Any:
        return models_pb2_grpc.ModelsStub(self.channel)

    @property
    def operations(self) -> Any:
        return operations_pb2_grpc.OperationsStub(self.channel)

    async def until_ready(self, ready: bool = True) -> None:
        while True:
            listed = await self.models.ListModels(models_pb2.ListModelsRequest())
            if listed.models[0].ready is ready:
                return
            await asyncio.sleep(0.01)


def config_for(model_path: Path, scheduler_port: int, **changes: Any) -> MeshConfig:
    settings = {"port": 0, "scheduler": (f"127.0.0.1:{scheduler_port}",), "drain_seconds": 2.0, **changes}
    return MeshConfig(
        model=ModelSettings(model=str(model_path), served_model_name=("bytes", "alias")),
        gateway=GatewaySettings(**settings),
        ledger=LedgerSettings(database="none"),
    )


async def start_gateway(config: MeshConfig, options: list[tuple[str, Any]] | None = None) -> Gateway:
    stopping = asyncio.Event()
    bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(server.run(config, stopping, bound.set_result))
    await asyncio.wait([task, bound], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    port = bound.result()
    return Gateway(port, grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options), stopping, task)


async def stop_gateway(gateway: Gateway) -> None:
    await gateway.channel.close()
    gateway.stopping.set()
    await gateway.task


@pytest.fixture
async def scheduler(model: ServedModel) -> AsyncIterator[FakeScheduler]:
    fake = FakeScheduler(model)
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
def until() -> Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]:
    """Waits until a check holds. What it waits for has no event of its own on this side of the wire."""

    async def wait(check: Callable[[], Awaitable[bool]]) -> None:
        while True:
            if await check():
                return
            await asyncio.sleep(0.01)

    return wait


@pytest.fixture
def until_late(
    scheduler: FakeScheduler,
) -> Callable[[Callable[[float], Any]], Awaitable[tuple[grpc.StatusCode, float]]]:
    """Makes a streaming call with a deadline, which passes. Returns its status, and the deadline in seconds."""

    async def wait(call: Callable[[float], Any]) -> tuple[grpc.StatusCode, float]:
        # On a busy machine a short one may have passed before the scheduler has the request.
        for timeout_s in (0.3, 3.0, 30.0):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in call(timeout_s):
                    pass
            if scheduler.sequences:
                return caught.value.code(), timeout_s
        pytest.fail("no request came to the scheduler before its deadline")

    return wait


@pytest.fixture
def settings() -> dict[str, Any]:
    """Gateway settings of the test; override to change."""
    return {}


@pytest.fixture
async def gateway(scheduler: FakeScheduler, model_path: Path, settings: dict[str, Any]) -> AsyncIterator[Gateway]:
    running = await start_gateway(config_for(model_path, scheduler.port, **settings))
    await running.until_ready()
    yield running
    await stop_gateway(running)


@pytest.fixture
async def guarded(scheduler: FakeScheduler, model_path: Path, tmp_path: Path) -> AsyncIterator[GuardedGateway]:
    """A gateway that asks for keys, and knows some."""
    async with guarded_gateway(scheduler, model_path, tmp_path / "tenants.db") as running:
        yield running


@pytest.fixture
def make_gateway(model_path: Path) -> Callable[..., Awaitable[Gateway]]:
    """Starts gateways: (scheduler_port, **settings) -> Gateway. Stop them with `await stop_gateway(gateway)`."""

    async def make(scheduler_port: int, **changes: Any) -> Gateway:
        return await start_gateway(config_for(model_path, scheduler_port, **changes))

    return make


@pytest.fixture(name="stop_gateway")
def _stop_gateway() -> Callable[[Gateway], Awaitable[None]]:
    return stop_gateway


@pytest.fixture(name="write_model")
def _write_model() -> Callable[..., Path]:
    return write_model


@pytest.fixture(name="byte_tokenizer")
def _byte_tokenizer() -> tokenizers.Tokenizer:
    return make_byte_tokenizer()
