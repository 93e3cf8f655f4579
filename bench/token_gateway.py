"""A gateway without text: submits prompts of token ids to a scheduler, and notes when which tokens come.

It stands where a real gateway would, so that what is measured is the scheduler and not the text.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from tercet import ids, rpc
from tercet.mesh.v1 import scheduler_pb2 as pb
from tercet.mesh.v1 import scheduler_pb2_grpc, sequence_pb2
from tercet.v1 import operations_pb2


@dataclass(slots=True, eq=False)
class Stream:
    """One request of one output. Times are seconds on the host's monotonic clock."""

    submitted_at: float
    done: asyncio.Future[None]
    # Whether the moments of its tokens are kept; otherwise only that of the first.
    watched: bool
    sequence_id: int = 0
    tokens_at: list[float] = field(default_factory=list)


class RefusedError(Exception):
    """The scheduler did not take or finish a request."""


class TokenGateway:
    """A scope with a stream to a scheduler; entering waits until a worker is there."""

    def __init__(self, address: str) -> None:
        self.num_tokens = 0
        self._channel = rpc.open_channel(address)
        self._outgoing: asyncio.Queue[pb.GatewayMessage] = asyncio.Queue()
        self._by_key: dict[int, Stream] = {}
        self._by_sequence: dict[int, Stream] = {}
        # Those whose tokens have to be looked at one by one.
        self._noted: set[int] = set()
        self._last_key = 0
        self._pool: pb.Pool | None = None
        self._workers = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> TokenGateway:
        call: Any = scheduler_pb2_grpc.SchedulerStub(self._channel).Attach()
        self._outgoing.put_nowait(pb.GatewayMessage(hello=pb.GatewayHello(gateway_id=ids.new_process_id("bench"))))
        self._tasks = [asyncio.create_task(self._read(call)), asyncio.create_task(self._write(call))]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    async def until_workers(self, count: int, timeout_s: float = 60.0) -> None:
        """Waits for so many live workers of one model. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while self._workers < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._workers} of {count} workers after {timeout_s:g} s")
            await asyncio.sleep(0.02)

    async def fleet(self) -> operations_pb2.Fleet:
        """The mesh now, as the scheduler sees it."""
        stub: Any = scheduler_pb2_grpc.SchedulerStub(self._channel)
        fleet: operations_pb2.Fleet = await stub.GetFleet(operations_pb2.GetFleetRequest(), timeout=30.0)
        return fleet

    def submit(self, prompt: Sequence[int], max_tokens: int, *, watched: bool = True) -> Stream:
        """A greedy request; `done` raises RefusedError if it does not end by itself."""
        assert self._pool is not None
        self._last_key += 1
        submit = pb.Submit(
            request_key=self._last_key,
            request_id=f"bench-{self._last_key}",
            model=self._pool.model,
            model_revision=self._pool.model_revision,
            prompt_token_ids=prompt,
            max_tokens=max_tokens,
            sampling=sequence_pb2.Sampling(top_p=1.0),
            n=1,
        )
        stream = Stream(time.monotonic(), asyncio.get_running_loop().create_future(), watched)
        self._by_key[self._last_key] = stream
        self._outgoing.put_nowait(pb.GatewayMessage(submit=submit))
        return stream

    async def _write(self, call: Any) -> None:
        while True:
            await call.write(await self._outgoing.get())

    async def _read(self, call: Any) -> None:
        async for message in call:
            kind = message.WhichOneof("message")
            if kind == "tokens":
                self._take(message.tokens, time.monotonic())
            elif kind == "accepted":
                stream = self._by_key.pop(message.accepted.request_key)
                (stream.sequence_id,) = message.accepted.sequence_ids
                self._by_sequence[stream.sequence_id] = stream
                self._noted.add(stream.sequence_id)
            elif kind == "refused":
                stream = self._by_key.pop(message.refused.request_key)
                stream.done.set_exception(RefusedError(message.refused.failure.message))
            elif kind == "pools" and message.pools.pools:
                self._pool = message.pools.pools[0]
                self._workers = self._pool.workers_live

    def _take(self, batch: pb.TokenBatch, now: float) -> None:
        self.num_tokens += len(batch.token_ids)
        if self._noted:
            for sequence_id in self._noted.intersection(batch.sequence_ids[:]):
                stream = self._by_sequence[sequence_id]
                stream.tokens_at.append(now)
                if not stream.watched:
                    self._noted.discard(sequence_id)
        for end in batch.ends:
            stream = self._by_sequence.pop(end.sequence_id)
            self._noted.discard(end.sequence_id)
            if end.HasField("failure"):
                stream.done.set_exception(RefusedError(end.failure.message))
            elif not stream.done.done():
                stream.done.set_result(None)
