"""A bounded queue of messages to one peer, so that a peer that does not read cannot hold the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

Message = TypeVar("Message")


class OutboxClosedError(Exception):
    """Nothing more will come. `overflowed`: the peer did not keep up."""

    def __init__(self, *, overflowed: bool) -> None:
        super().__init__("overflowed" if overflowed else "closed")
        self.overflowed = overflowed


class Outbox(Generic[Message]):
    """One writer task takes, the loop puts. Never blocks the putter."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._messages: deque[Message] = deque()
        self._changed = asyncio.Event()
        self._closed: OutboxClosedError | None = None

    def put(self, message: Message) -> bool:
        """Adds a message; dropped if closed. False when the bound was hit just now: the outbox is closed and empty."""
        if self._closed is not None:
            return True
        if len(self._messages) >= self._limit:
            self._messages.clear()
            self._close(overflowed=True)
            return False
        self._messages.append(message)
        self._changed.set()
        return True

    def close(self) -> None:
        """What is in it can still be taken."""
        if self._closed is None:
            self._close(overflowed=False)

    async def take(self) -> Message:
        """The next message. Raises OutboxClosedError when closed and empty."""
        while not self._messages:
            if self._closed is not None:
                raise self._closed
            self._changed.clear()
            await self._changed.wait()
        return self._messages.popleft()

    async def take_all(self) -> list[Message]:
        """All messages there are, at least one. Raises OutboxClosedError when closed and empty."""
        taken = [await self.take(), *self._messages]
        self._messages.clear()
        return taken

    def _close(self, *, overflowed: bool) -> None:
        self._closed = OutboxClosedError(overflowed=overflowed)
        self._changed.set()
