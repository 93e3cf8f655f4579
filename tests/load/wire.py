"""Real connections on a virtual clock: time stands still while anything is on its way between client and server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tercet.load.ask import Ask
from tercet.load.target import AnswerError, Event, Piece
from tests.load.scripted import Script


class Wire:
    """What either end has sent, and what the other has received. `script` says what becomes of the requests in the
    order in which they are received."""

    def __init__(self, script: Callable[[int], Script]) -> None:
        self._script = script
        self.sent = self.received = 0
        self.pieces_sent = self.pieces_received = 0
        self.ends_sent = self.ends_received = 0
        self.first = asyncio.Event()
        # That no script is about, and messages that are being written.
        self.calls = 0

    def receive(self) -> Script:
        """A request has come to the server."""
        self.received += 1
        self.first.set()
        return self._script(self.received - 1)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """The server hands a message to its connection, and goes on when that has taken it."""
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1

    @property
    def busy(self) -> bool:
        return self.calls > 0 or (self.sent, self.pieces_sent, self.ends_sent) != (
            self.received,
            self.pieces_received,
            self.ends_received,
        )


class Wired:
    """A target that tells the wire what it sends and receives."""

    def __init__(self, target: Any, wire: Wire) -> None:
        self._target = target
        self._wire = wire
        self.name = target.name
        for call in ("describe", "tokenize", "limits", "look"):
            setattr(self, call, self._calling(getattr(target, call)))

    def _calling(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def calling(*arguments: Any) -> Any:
            self._wire.calls += 1
            try:
                return await call(*arguments)
            finally:
                self._wire.calls -= 1

        return calling

    async def stream(self, ask: Ask) -> AsyncGenerator[Event, None]:
        self._wire.sent += 1
        try:
            async for event in self._target.stream(ask):
                self._wire.pieces_received += isinstance(event, Piece)
                yield event
        except AnswerError:
            self._wire.ends_received += 1
            raise
        self._wire.ends_received += 1
