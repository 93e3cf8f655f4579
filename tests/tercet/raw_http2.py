"""HTTP/2 by hand, for what no client library would send."""

from __future__ import annotations

import asyncio
import contextlib

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED = 0x1, 0x4, 0x8


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """One frame; `length`, if given, is claimed instead of the payload's own."""
    size = len(payload) if length is None else length
    return size.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header field as HPACK has it without tables and without Huffman codes. Both are shorter than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_headers(path: bytes) -> bytes:
    """The header block of a gRPC call."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"test"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
    return b"".join(literal(*field) for field in fields)


GREETING = PREFACE + frame(SETTINGS, 0, 0)
# Of a client that takes no byte of any answer until it says so.
DEAF_GREETING = PREFACE + frame(SETTINGS, 0, 0, b"\x00\x04" + bytes(4))


def whole_call(stream: int, path: bytes, message: bytes) -> bytes:
    """A call with its one request."""
    data = b"\x00" + len(message).to_bytes(4, "big") + message
    return frame(HEADERS, END_HEADERS, stream, call_headers(path)) + frame(DATA, END_STREAM, stream, data)


def listen_again(stream: int) -> bytes:
    """The client takes a megabyte of one answer."""
    return frame(WINDOW_UPDATE, 0, stream, (1 << 20).to_bytes(4, "big"))


class Connections:
    """Raw connections to one port, each of which has sent some bytes; `closed` counts those that the server has ended.
    A scope."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.closed = 0
        self.received: list[bytes] = []

    async def __aenter__(self) -> Connections:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def open(self, sent: bytes, count: int = 1) -> None:
        """Opens connections and sends the bytes on each."""
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(sent)
            self._writers.append(writer)
            self.received.append(b"")
            self._tasks.append(asyncio.create_task(self._watch(reader, len(self.received) - 1)))

    def send(self, sent: bytes) -> None:
        """Sends bytes on all."""
        for writer in self._writers:
            writer.write(sent)

    async def until_closed(self, count: int, limit_s: float) -> None:
        """Waits until the server has ended so many. Raises AssertionError after `limit_s` seconds."""
        give_up = asyncio.get_running_loop().time() + limit_s
        while self.closed < count:
            assert asyncio.get_running_loop().time() < give_up, f"{self.closed} of {count} are closed"
            await asyncio.sleep(0.02)

    async def _watch(self, reader: asyncio.StreamReader, index: int) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                # Enough to see what the server says first and last.
                self.received[index] = (self.received[index] + data)[-4096:]
        self.closed += 1
