"""Messages between a service and its grammar process: a JSON head and a body of bytes, on a pipe."""

from __future__ import annotations

import json
import struct
from typing import IO, Any

_LENGTHS = struct.Struct("<II")


def write_frame(stream: IO[bytes], head: Any, body: bytes = b"") -> None:
    """Writes one message."""
    text = json.dumps(head).encode()
    stream.write(_LENGTHS.pack(len(text), len(body)) + text + body)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[Any, bytes]:
    """The next message. Raises EOFError where there is none, or not a whole one."""
    head, body = _LENGTHS.unpack(_read(stream, _LENGTHS.size))
    return json.loads(_read(stream, head)), _read(stream, body)


def _read(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data
