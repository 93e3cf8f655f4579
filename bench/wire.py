"""TCP relays that can be cut, that can fall silent, and of which one end can be cut while the other hears nothing.

They run on a thread of their own: who breaks them may be blocked by what is broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

READ_BYTES = 1 << 16


@dataclass(eq=False)
class _Connection:
    """One connection through a relay: the writers to either end, `above` to who dialled."""

    above: asyncio.StreamWriter
    below: asyncio.StreamWriter
    # The end below is gone, and the one above is not told.
    silent: bool = False


@dataclass(eq=False)
class Wire:
    """A relay in front of a port. Its methods may be called from any thread."""

    port: int
    _loop: asyncio.AbstractEventLoop
    _target: int
    _connections: set[_Connection] = field(default_factory=set)
    _flowing: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """Where to dial instead of the port behind it."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Both ends see their connections go without a word; new ones are welcome."""
        self._call(lambda: [self._abort(each) for each in list(self._connections)])

    def cut_below(self) -> None:
        """Who is dialled sees its connections go; who dialled hears nothing, as behind a router that lost its power."""
        self._call(lambda: [self._abort_below(each) for each in list(self._connections)])

    def stall(self) -> None:
        """Nothing passes, and nobody is told, until `flow`."""
        self._call(self._flowing.clear)

    def flow(self) -> None:
        """What was held back passes, and what comes."""
        self._call(self._flowing.set)

    def _call(self, what: Callable[[], object]) -> None:
        """Returns when it is done."""
        done = threading.Event()

        def do() -> None:
            what()
            done.set()

        self._loop.call_soon_threadsafe(do)
        done.wait()

    @staticmethod
    def _abort(connection: _Connection) -> None:
        connection.above.transport.abort()
        connection.below.transport.abort()

    @staticmethod
    def _abort_below(connection: _Connection) -> None:
        connection.silent = True
        connection.below.transport.abort()

    async def open(self) -> None:
        """For its thread."""
        self._flowing.set()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            reader_below, writer_below = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            # As if nobody listened here.
            writer.transport.abort()
            return
        connection = _Connection(writer, writer_below)
        self._connections.add(connection)
        try:
            await asyncio.gather(
                self._copy(connection, reader, writer_below), self._copy(connection, reader_below, writer)
            )
        except asyncio.CancelledError:
            # Its thread ends, and asyncio would complain of a connection that was not over.
            return
        finally:
            self._connections.discard(connection)
            self._abort(connection)

    async def _copy(self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(READ_BYTES):
                await self._flowing.wait()
                if not connection.silent:
                    writer.write(data)
                    await writer.drain()
        if not connection.silent:
            writer.close()


class Wires:
    """The thread, and the wires on it, as a scope."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)

    def __enter__(self) -> Wires:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wire(self, target: int) -> Wire:
        """A wire in front of a port of this host."""

        async def make() -> Wire:
            wire = Wire(0, self._loop, target)
            await wire.open()
            return wire

        return asyncio.run_coroutine_threadsafe(make(), self._loop).result(10)


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
