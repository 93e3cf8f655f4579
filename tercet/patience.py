"""How long somebody waits for what may never come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def within(limit_s: float, doing: Awaitable[T]) -> T:
    """What `doing` gives. Raises asyncio.TimeoutError after `limit_s` seconds.

    It costs no task, but takes a cancel that comes at that very moment for its own: for the handlers of calls, which
    end in either case.
    """
    task, late = asyncio.current_task(), False
    assert task is not None

    def give_up() -> None:
        nonlocal late
        late = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(limit_s, give_up)
    try:
        return await doing
    except asyncio.CancelledError:
        if not late:
            raise
        raise asyncio.TimeoutError from None
    finally:
        timer.cancel()


class GivenUpError(Exception):
    """What was awaited has been cancelled, and not by whoever awaited it: its channel was closed."""


async def apart(doing: Coroutine[Any, Any, T], limit_s: float | None = None) -> T:
    """What `doing` gives, in a task of its own, which ends with the await. Raises asyncio.TimeoutError after `limit_s`
    seconds, GivenUpError.

    Unlike wait_for, which up to Python 3.11 loses a cancel that comes with the result, and takes the one kind of cancel
    for the other.
    """
    task = asyncio.create_task(doing)
    try:
        await asyncio.wait({task}, timeout=limit_s)
        if not task.done():
            raise asyncio.TimeoutError
        if task.cancelled():
            raise GivenUpError
        return task.result()
    finally:
        task.cancel()
