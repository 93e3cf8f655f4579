"""A stream between a scheduler and a worker that both live on: cut at any moment, nothing of before is left.

Scheduler core, links, gRPC, the worker's service and its executor as they are; only the model is one without weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable

import pytest
import structlog
import torch

from scheduler.actions import Accepted, GatewayMessage, TokenBatch
from scheduler.core import Core
from scheduler.discovery import Discovery
from scheduler.events import EndReason, GatewayAttached, Sampling, Submission, Submitted
from scheduler.links import Links
from scheduler.loop import Loop
from scheduler.outbox import Outbox, OutboxClosedError
from scheduler.server import core_settings
from scheduler.worker import Worker
from tercet import rpc
from tercet.mesh.v1 import worker_pb2, worker_pb2_grpc
from tercet.sections import MeshConfig, SchedulerSettings
from tests.worker.recall_model import CONFIG, RecallModel, continuation
from worker.executor import Executor
from worker.host_steps import HostSteps
from worker.kv_cache import KVCache
from worker.service import WorkerService

CPU = torch.device("cpu")
BLOCK_SIZE = 8
NUM_BLOCKS = 96
HELLO = worker_pb2.Hello(
    worker_id="worker-real",
    epoch=5,
    model="recall",
    model_revision="r1",
    num_blocks=NUM_BLOCKS,
    block_size=BLOCK_SIZE,
    max_num_seqs=8,
    max_num_batched_tokens=32,
    max_model_len=CONFIG.max_model_len,
    vocab_size=CONFIG.vocab_size,
)
STEP_SECONDS = 0.002


class SlowRecallModel(RecallModel):
    """Slow enough that a cut finds something to cut."""

    def forward(self, *batch):  # type: ignore[no-untyped-def]
        time.sleep(STEP_SECONDS)
        return super().forward(*batch)


class Wire:
    """A TCP relay in front of the worker, which can be cut; `open` is whether it takes new connections."""

    def __init__(self, port: int) -> None:
        self.open = True
        self.port = 0
        self._to = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Both ends see the connection go without a word."""
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.open:
            writer.transport.abort()
            return
        below_reader, below_writer = await asyncio.open_connection("127.0.0.1", self._to)
        both = {writer, below_writer}
        self._writers |= both
        try:
            await asyncio.gather(_copy(reader, below_writer), _copy(below_reader, writer))
        finally:
            self._writers -= both


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


class Bench:
    """One scheduler and one worker, and all that a test asks of them."""

    def __init__(self) -> None:
        self.kv_cache = KVCache(CONFIG, NUM_BLOCKS, BLOCK_SIZE, torch.float32, CPU)
        steps = HostSteps(SlowRecallModel(), self.kv_cache)  # type: ignore[arg-type]
        self.executor = Executor(steps, self.kv_cache, check_every_step=True)
        self.service = WorkerService()
        self.server = rpc.Server()
        self.tokens: dict[int, list[int]] = {}
        self.prompts: dict[int, list[int]] = {}
        self.ended: dict[int, EndReason] = {}
        self._keys = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Bench]:
        self.executor.start()
        worker_pb2_grpc.add_WorkerServicer_to_server(self.service, self.server.grpc_server)
        self.service.open(self.executor, HELLO)
        self.wire = Wire(await self.server.start("127.0.0.1", 0, [worker_pb2.DESCRIPTOR], key="worker.port"))
        await self.wire.start()
        address = f"127.0.0.1:{self.wire.port}"
        self.core = Core(core_settings(MeshConfig(scheduler=SchedulerSettings(workers=(address,)))))
        self.loop = Loop(self.core, time.monotonic)
        self.gateway, outbox = self.loop.open_gateway()
        self.loop.post(GatewayAttached(self.gateway, "gateway-test"))
        tasks = [
            asyncio.create_task(self.loop.run()),
            asyncio.create_task(Links(Discovery([address], 5), self.loop, 1).run()),
            asyncio.create_task(self._read(outbox)),
        ]
        try:
            yield self
            for task in tasks:
                assert not task.done(), task.exception()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.wire.stop()
            await self.server.stop(0)
            await asyncio.to_thread(self.executor.stop)

    @property
    def workers(self) -> list[Worker]:
        """Those live to the scheduler."""
        return list(self.core._mesh.fleet.workers.values())

    async def submit(self, prompt: list[int], max_tokens: int) -> int:
        """Returns the sequence's id."""
        self._keys += 1
        greedy = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
        submission = Submission(
            self._keys, f"req-{self._keys}", "recall", "r1", tuple(prompt), max_tokens, (), greedy, None, b""
        )
        before = set(self.prompts) | set(self.tokens)
        self.loop.post(Submitted(self.gateway, submission))
        await until(lambda: bool(set(self.tokens) - before), "the request is accepted")
        (sequence_id,) = set(self.tokens) - before
        self.prompts[sequence_id] = prompt
        return sequence_id

    async def _read(self, outbox: Outbox[GatewayMessage]) -> None:
        with contextlib.suppress(OutboxClosedError):
            while True:
                message = await outbox.take()
                if isinstance(message, Accepted):
                    self.tokens.update({sequence_id: [] for sequence_id in message.sequence_ids})
                elif isinstance(message, TokenBatch):
                    for sequence_id, token_id in zip(message.sequence_ids, message.token_ids, strict=True):
                        self.tokens[sequence_id].append(token_id)
                    self.ended.update({end.sequence_id: end.reason for end in message.ends})

    def in_step(self) -> bool:
        """Whether both sides say the same of a worker at rest."""
        if len(self.workers) != 1 or not self.executor.idle:
            return False
        worker, counts = self.workers[0], self.kv_cache.counts()
        # Before a first step the scheduler cannot know which of the blocks are cached; they can be had anyway.
        return (
            worker.ledger.available == counts.free + counts.cached == NUM_BLOCKS
            and worker.prefixes == set(self.kv_cache.pool.published_keys().tolist())
            and not worker.busy
        )


async def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"did not come about: {what}")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with Bench().running() as made:
        await until(lambda: len(made.workers) == 1, "the worker is attached")
        yield made


async def test_what_the_prefix_cache_holds_is_told_again(bench: Bench) -> None:
    prompt = [7, 3, 9, 1] * 10
    first = await bench.submit(prompt, 8)
    await until(lambda: first in bench.ended, "it ends")
    await until(bench.in_step, "both agree")
    before = bench.workers[0]
    assert len(before.prefixes) >= len(prompt) // BLOCK_SIZE
    with structlog.testing.capture_logs() as logs:
        bench.wire.cut()
        await until(lambda: bench.workers not in ([], [before]), "a new stream")
        await until(bench.in_step, "both agree again")
        assert bench.workers[0].prefixes == before.prefixes
        (attached,) = [event for event in logs if event["event"] == "worker_attached"]
        # The same process: what it had cached is still there, and found.
        assert not attached["restarted"]
        second = await bench.submit(prompt, 8)
        await until(lambda: second in bench.ended, "it ends, too")
        (finished,) = [event for event in logs if event["event"] == "request_finished"]
    assert finished["cached_tokens"] == len(prompt) - BLOCK_SIZE
    assert bench.tokens[first] == bench.tokens[second] == continuation(prompt, 8)


@pytest.mark.parametrize("seed", range(5))
async def test_sequences_go_on_and_the_books_balance_wherever_the_stream_is_cut(bench: Bench, seed: int) -> None:
    rng = random.Random(seed)
    limits = {}
    # More than the pool holds at once: some wait, and some may have to give way.
    for _ in range(10):
        prompt = [rng.randrange(CONFIG.vocab_size) for _ in range(rng.randrange(1, 60))]
        length = rng.randrange(20, 120)
        limits[await bench.submit(prompt, length)] = length
    # After a third without a token between, a sequence would be given up.
    for _ in range(2):
        wanted = sum(map(len, bench.tokens.values())) + rng.randrange(1, 200)
        await until(
            lambda wanted=wanted: sum(map(len, bench.tokens.values())) >= wanted or len(bench.ended) == len(limits),
            "tokens come",
        )
        await asyncio.sleep(rng.random() * 0.01)
        if rng.random() < 0.5:
            bench.wire.open = False
            bench.wire.cut()
            await until(lambda: not bench.workers, "the scheduler sees it")
            await until(lambda: bench.executor.idle, "the worker drops what it had")
            assert bench.kv_cache.counts().used == 0
            bench.wire.open = True
        else:
            bench.wire.cut()
        await until(lambda: len(bench.workers) == 1, "a new stream")
    await until(lambda: bench.ended.keys() == limits.keys(), "all end")
    assert set(bench.ended.values()) == {EndReason.LENGTH}
    for sequence_id, length in limits.items():
        assert bench.tokens[sequence_id] == continuation(bench.prompts[sequence_id], length)
    await until(bench.in_step, "both agree")
    assert bench.core.check() == []
    assert len(bench.workers[0].ledger) == 0
    assert bench.kv_cache.counts().used == 0
    assert bench.executor.num_sequences == 0
    bench.kv_cache.check()
