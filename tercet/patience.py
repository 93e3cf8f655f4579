"""How long somebody waits for what may never come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Patience:
    """One await that ends after `limit_s` seconds, or when `give_up` is called. It costs no task: for the handlers of
    calls, which end when they are cancelled, whoever does it."""

    __slots__ = ("_limit_s", "_lost", "_task")

    def __init__(self, limit_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._limit_s = limit_s
        self._lost = False

    def give_up(self) -> None:
        """Ends the await; once, while it is awaited."""
        self._lost = True
        self._task.cancel()

    async def spend_on(self, doing: Awaitable[T]) -> T:
        """What `doing` gives. Raises asyncio.TimeoutError if that took too long."""
        timer = asyncio.get_running_loop().call_later(self._limit_s, self.give_up)
        try:
            return await doing
        except asyncio.CancelledError:
            if not self._lost:
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
