"""JSON of many rows, made and encoded a few at a time: whoever else is in the event loop has his turn in between. Knows
no answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from .exchange import encode_json

# Without a turn for others, in seconds.
_TURN_S = 0.002


class Rows:
    """A list whose items are made while it is encoded. `make` gives them anew each time."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make())

    def __add__(self, other: Rows) -> Rows:
        return Rows(lambda: chain(self, other))


async def encode_in_turns(value: Any) -> bytes:
    """As `encode_json`, however much it is."""
    out = bytearray()
    begun = time.perf_counter()
    for piece in _pieces(value):
        out += piece
        if time.perf_counter() - begun > _TURN_S:
            await asyncio.sleep(0)
            begun = time.perf_counter()
    return bytes(out)


def _pieces(value: Any) -> Iterator[bytes]:
    """In order, none of them much: an item of Rows is one."""
    if isinstance(value, dict):
        begin = b"{"
        for name, item in value.items():
            yield begin + encode_json(name) + b":"
            yield from _pieces(item)
            begin = b","
        yield b"}" if value else b"{}"
    elif isinstance(value, (list, Rows)):
        begin = b"["
        for item in value:
            yield begin
            yield from _pieces(item) if isinstance(value, list) else (encode_json(item),)
            begin = b","
        yield b"[]" if begin == b"[" else b"]"
    else:
        yield encode_json(value)
