"""A client whose requests come when they are due, whatever became of those before: what open-loop benches share."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from tercet.client import Accepted, AsyncClient, Delta, Event
from tercet.errors import RequestError
from tercet.load.figures import percentile


@dataclass(frozen=True, slots=True)
class Ask:
    """A greedy request for exactly `max_tokens` tokens, due at `at` seconds from the start."""

    at: float
    prompt: tuple[int, ...]
    max_tokens: int
    traffic_class: str = ""
    # The deadline of the call.
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """One request on the client's clock: seconds since the start, when it was sent, and when each of its tokens came.

    `over` is when it ended, `error` why it was not done.
    """

    ask: Ask
    sent: float
    accepted: bool
    tokens: tuple[float, ...]
    over: float
    error: RequestError | None = None
    broken_off: bool = False

    @property
    def done(self) -> bool:
        """Whether it got all its tokens."""
        return self.error is None and not self.broken_off

    @property
    def refused(self) -> bool:
        """At the door: no work was ever done for it."""
        return self.error is not None and not self.accepted

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.tokens[0] - self.sent

    @property
    def tpot(self) -> float:
        """Mean seconds between tokens; 0 for a single one."""
        return (self.tokens[-1] - self.tokens[0]) / max(1, len(self.tokens) - 1)


async def ask(client: AsyncClient, asked: Ask, start: float) -> Seen:
    """Sends one request now and reads its answer. Cancelled, it breaks off and returns what it has."""
    sent = time.perf_counter() - start
    moments: list[float] = []
    accepted = False

    def seen(error: RequestError | None = None, *, broken_off: bool = False) -> Seen:
        return Seen(asked, sent, accepted, tuple(moments), time.perf_counter() - start, error, broken_off)

    events: AsyncIterator[Event] = aiter(
        client.generate(
            list(asked.prompt),
            temperature=0.0,
            max_tokens=asked.max_tokens,
            ignore_eos=True,
            traffic_class=asked.traffic_class,
            timeout_s=asked.timeout_s,
        )
    )
    try:
        async for event in events:
            if isinstance(event, Delta):
                moments += [time.perf_counter() - start] * len(event.token_ids)
            elif isinstance(event, Accepted):
                accepted = True
    except RequestError as error:
        return seen(error)
    except asyncio.CancelledError:
        return seen(broken_off=True)
    return seen()


@asynccontextmanager
async def connections(address: str, count: int) -> AsyncIterator[Sequence[AsyncClient]]:
    """So many clients of one address, each with a connection: gateways that share a port share these."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(AsyncClient(address)) for _ in range(count)]


async def send(clients: Sequence[AsyncClient], asks: Iterable[Ask], patience_s: float | None = None) -> list[Seen]:
    """Sends each request when it is due, by one client after the other; those not over `patience_s` seconds after the
    last are broken off."""
    start = time.perf_counter()
    tasks = []
    for client, asked in zip(itertools.cycle(clients), asks, strict=False):
        wait = start + asked.at - time.perf_counter()
        # A client that is behind lets its answers be read all the same.
        await asyncio.sleep(max(0.0, wait))
        tasks.append(asyncio.create_task(ask(client, asked, start)))
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=patience_s)
        for task in late:
            task.cancel()
    return await asyncio.gather(*tasks)


def lag(seen: Iterable[Seen]) -> dict[str, float]:
    """Milliseconds by which the client itself was late to send."""
    late = [(each.sent - each.ask.at) * 1e3 for each in seen]
    return {"p50": percentile(late, 50), "p99": percentile(late, 99), "max": max(late)}
