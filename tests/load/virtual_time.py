"""An event loop whose clock jumps to whatever is due next: seconds of waiting cost nothing, and are exact."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        # While something is on its way over a real connection, time stands still.
        self.in_flight: Callable[[], bool] = lambda: False

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None or self.in_flight():
            return super().select(0.001)
        self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def stall(self, seconds: float) -> None:
        """Time passes in which the loop does nothing."""
        self._virtual.now += seconds

    def stand_still_while(self, in_flight: Callable[[], bool]) -> None:
        self._virtual.in_flight = in_flight


def run_virtual(work: Callable[[VirtualLoop], Coroutine[Any, Any, Value]]) -> Value:
    """Runs `work` to its end on a loop that begins at 0."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work(loop))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
