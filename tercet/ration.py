"""Work of which there may be thousands of pieces at once, a few in each turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Ration:
    """Pieces of work are done in the order in which they come, at most `limit` in a turn of the event loop: at once as
    long as there are fewer, and the others in the turns that follow, so that whoever else has something to do there
    waits for `limit` of them and not for all. For one event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # While any wait there is nothing left of the turn.
        self._left = limit
        self._waiting: deque[Callable[[], object]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def do(self, work: Callable[[], object]) -> None:
        """Does a piece, now or soon. What it raises it raises here only if that is now."""
        if not self._left:
            self._waiting.append(work)
            return
        if self._left == self._limit:
            asyncio.get_running_loop().call_soon(self._turn)
        self._left -= 1
        work()

    def finish(self) -> None:
        """Does all that waits."""
        while self._waiting:
            self._waiting.popleft()()

    def _turn(self) -> None:
        self._left = self._limit
        if self._waiting:
            # First: a piece that raises does not stop those behind it.
            asyncio.get_running_loop().call_soon(self._turn)
        while self._waiting and self._left:
            self._left -= 1
            self._waiting.popleft()()
