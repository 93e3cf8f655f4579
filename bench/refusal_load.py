"""Clients in processes of their own: streams whose gaps are measured, and requests that are to be refused.

Both run on the host's monotonic clock, so that whoever started them knows what happened when.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio
import uvloop

from tercet import rpc
from tercet.client import AsyncClient, Delta
from tercet.load.figures import gaps, percentile

GENERATE = "/tercet.v1.Inference/Generate"
# Streams have begun, and the mesh is calm, so many seconds before they are looked at.
LEAD_S = 1.5
# What is not answered by then never will be.
PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Flood:
    """Calls of one body, as it stands on the wire, `rate` a second from the moment `begin` for `seconds`."""

    address: str
    key: str
    body: bytes
    rate: float
    begin: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Answers:
    """How the calls of a flood ended: by reason, the others let in. `ended`: when, on the host's clock; `took`: seconds
    from the call to its end, of refused ones; `late`: by how much calls were late."""

    reasons: Counter[str] = field(default_factory=Counter)
    ended: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)


def started() -> None:
    """Returns after a second: so each process of a pool gets one, and has loaded what it needs."""
    time.sleep(1.0)


def flood(asked: Flood) -> Answers:
    """Makes the calls when they are due, whatever became of those before."""
    return uvloop.run(_flood(asked))


async def _flood(asked: Flood) -> Answers:
    answers = Answers()
    metadata = (("authorization", f"Bearer {asked.key}"),) if asked.key else ()
    async with grpc.aio.insecure_channel(asked.address, options=rpc.CHANNEL_OPTIONS) as channel:
        # Bodies as they are: what is measured is the gateway, and this process has one core at most.
        generate = channel.unary_stream(GENERATE)
        await channel.channel_ready()

        async def call() -> None:
            began = time.monotonic()
            events = generate(asked.body, metadata=metadata)
            try:
                while await events.read() is not grpc.aio.EOF:
                    pass
            except grpc.aio.AioRpcError as error:
                answers.took.append(time.monotonic() - began)
                known = rpc.typed_error(error.trailing_metadata())
                answers.reasons[error.code().name if known is None else known.reason] += 1
            else:
                answers.reasons["let in"] += 1
            answers.ended.append(time.monotonic())

        tasks = []
        for number in range(round(asked.rate * asked.seconds)):
            due = asked.begin + number / asked.rate
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            answers.late.append(time.monotonic() - due)
            tasks.append(asyncio.create_task(call()))
        _, unanswered = await asyncio.wait(tasks, timeout=PATIENCE_S)
        for task in unanswered:
            task.cancel()
        answers.reasons["unanswered"] += len(unanswered)
    return answers


def stream_gaps(address: str, key: str, count: int, begin: float, seconds: float) -> list[float]:
    """Seconds between one delta and the next of so many streams, in the `seconds` after the moment `begin`."""
    return uvloop.run(_stream_gaps(address, key, count, begin, seconds))


async def _stream_gaps(address: str, key: str, count: int, begin: float, seconds: float) -> list[float]:
    moments: list[list[float]] = [[] for _ in range(count)]
    async with AsyncClient(address, api_key=key) as client:

        async def read(noted: list[float]) -> None:
            events = client.generate([7] * 32, temperature=0.0, max_tokens=4000, ignore_eos=True)
            # One by one: what has come is there when the rest is broken off.
            async for event in events:
                noted += [time.monotonic()] if isinstance(event, Delta) else []

        tasks = [asyncio.create_task(read(noted)) for noted in moments]
        await asyncio.sleep(begin + seconds - time.monotonic())
        ended = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in ended:
            # A stream that was to last did not.
            task.result()
    inside = ([moment for moment in noted if moment >= begin] for noted in moments)
    return [gap for noted in inside for gap in gaps(noted)]


def in_ms(seconds: Sequence[float], *percents: float) -> dict[str, float]:
    """Percentiles and the largest, in milliseconds."""
    found = {f"p{percent:g}_ms": percentile(seconds, percent) * 1e3 for percent in percents}
    return {**found, "max_ms": max(seconds) * 1e3}
