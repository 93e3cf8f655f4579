"""A bounded queue of messages to one peer, so that a peer that does not read cannot hold the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Message = TypeVar("Message")


class OutboxClosedError(Exception):
    """Nothing more will come. `overflowed`: the peer did not keep up."""

    def __init__(self, *, overflowed: bool) -> None:
        super().__init__("overflowed" if overflowed else "closed")
        self.overflowed = overflowed


class Outbox(Generic[Message]):
    """One writer task takes, the loop puts. Never blocks the putter.

    `limit` is on the sum of what `size_of` says of the messages in it: without that, on their number.
    """

    def __init__(self, limit: int, size_of: Callable[[Message], int] = lambda _: 1) -> None:
        self._limit = limit
        self._size_of = size_of
        self._size = 0
        self._messages: deque[Message] = deque()
        self._changed = asyncio.Event()
        self._closed: OutboxClosedError | None = None

    def put(self, message: Message) -> bool:
        """Adds a message; dropped if closed. False when the bound was hit just now: the outbox is closed and empty."""
        if self._closed is not None:
            return True
        self._size += self._size_of(message)
        if self._size > self._limit:
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
        message = self._messages.popleft()
        self._size -= self._size_of(message)
        return message

    async def take_all(self) -> list[Message]:
        """All messages there are, at least one. Raises OutboxClosedError when closed and empty."""
        taken = [await self.take(), *self._messages]
        self._messages.clear()
        self._size = 0
        return taken

    def _close(self, *, overflowed: bool) -> None:
        self._closed = OutboxClosedError(overflowed=overflowed)
        self._changed.set()
