"""A few places that many wait for, in turns among tenants. Knows nothing of what is done there."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator


class Turns:
    """At most `places` at a time. Those who wait take turns by tenant, within a tenant in the order in which they came:
    whatever one of them brings along, another waits for one of its at most."""

    def __init__(self, places: int) -> None:
        self._free = places
        # By tenant, whose turn is next first. No queue is empty.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @contextlib.asynccontextmanager
    async def place(self, tenant: str) -> AsyncIterator[None]:
        """A place for as long as the scope lasts."""
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(tenant, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                # It may have been given the place in the same moment.
                if not turn.cancelled():
                    self._give_back()
                raise
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        while self._waiting:
            tenant = next(iter(self._waiting))
            queue = self._waiting.pop(tenant)
            turn = queue.popleft()
            if queue:
                self._waiting[tenant] = queue
            # Those who gave up waiting are still in the queue.
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
