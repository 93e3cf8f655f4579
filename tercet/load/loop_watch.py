"""Whether the client itself keeps up: how late its event loop is, and what part of a processor it takes."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

from .exchange import Clock

# How often the loop is asked to be in time.
_TICK_S = 0.02


class LoopWatch:
    """A scope within a running loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._worst_s = 0.0
        self._since = (clock(), time.thread_time())
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LoopWatch:
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def take(self) -> tuple[float, float]:
        """Milliseconds that the loop was late at worst, and the part of one processor that its thread had, since the
        last time."""
        now = (self._clock(), time.thread_time())
        passed_s, used_s = now[0] - self._since[0], now[1] - self._since[1]
        worst_ms = self._worst_s * 1e3
        self._since, self._worst_s = now, 0.0
        return worst_ms, used_s / passed_s if passed_s > 0 else 0.0

    async def _tick(self) -> None:
        while True:
            due = self._clock() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self._worst_s = max(self._worst_s, self._clock() - due)
