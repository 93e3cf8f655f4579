"""Sends requests when they are due, or as soon as one of so many clients is free.

Knows neither servers nor answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from tercet.patience import within

from .ask import Ask
from .exchange import Clock

# A moment that is nearer has come.
_IN_TIME_S = 1e-5
# Sends one that is due at that moment, and reads its answer.
Send = Callable[[Ask, float], Awaitable[None]]


async def send_when_due(
    asks: Iterable[Ask], send: Send, clock: Clock, limit: int, patience_s: float | None
) -> Sequence[Ask]:
    """Each at its moment, whatever became of those before; with a `limit` above 0 not before fewer than so many run.
    Those that are not over `patience_s` seconds after the last was sent are cancelled; None: all are waited for. If the
    limit is reached and none is over for so long, no more are sent: those that were not are returned."""
    tasks: list[asyncio.Task[None]] = []
    places = asyncio.Semaphore(limit) if limit else None

    async def one(ask: Ask, due_s: float) -> None:
        try:
            await send(ask, due_s)
        finally:
            if places is not None:
                places.release()

    coming = iter(asks)
    try:
        for ask in coming:
            assert ask.due_s is not None
            await _until(ask.due_s, clock)
            if places is not None and not await _acquired(places, patience_s):
                return [ask, *coming]
            tasks.append(asyncio.create_task(one(ask, ask.due_s)))
        if tasks:
            await asyncio.wait(tasks, timeout=patience_s)
        return []
    finally:
        await _end(tasks)


async def send_in_turn(
    asks: Iterator[Ask], send: Send, clock: Clock, clients: int, until_s: float, patience_s: float
) -> None:
    """By so many clients, each of which sends its next one when it has its answer, until `until_s`; 0: until there are
    no more. When none has been over for `patience_s` seconds, those that run are cancelled and no more are sent."""
    over, stopped = 0, False

    async def client() -> None:
        nonlocal over
        # A request that is broken off takes the cancel for its own.
        while not stopped and (not until_s or clock() < until_s):
            ask = next(asks, None)
            if ask is None:
                return
            await send(ask, clock())
            over += 1

    tasks = [asyncio.create_task(client()) for _ in range(clients)]
    try:
        left: set[asyncio.Task[None]] = set(tasks)
        before = -1
        while left and over != before:
            before = over
            _, left = await asyncio.wait(left, timeout=patience_s)
    finally:
        stopped = True
        await _end(tasks)


async def _acquired(places: asyncio.Semaphore, limit_s: float | None) -> bool:
    try:
        await (places.acquire() if limit_s is None else within(limit_s, places.acquire()))
    except asyncio.TimeoutError:
        return False
    return True


async def _until(moment: float, clock: Clock) -> None:
    """Also where it has passed, the loop has a turn: a client that is behind lets its answers be read all the same."""
    left_s = moment - clock()
    await asyncio.sleep(max(0.0, left_s))
    # uvloop wakes up to a millisecond early.
    if left_s > 0 and moment - clock() > _IN_TIME_S:
        await _until(moment, clock)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancels those that run. Raises what one of them raised, which is a bug."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
