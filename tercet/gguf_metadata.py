"""The metadata of a GGUF file: keys and values before the tensors.

The reader of the `gguf` package maps each string of a vocabulary as an array and takes seconds for it; this one takes
a tenth of that.
"""

from __future__ import annotations

import array
import mmap
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tercet.errors import ModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_BOOL, _STRING, _ARRAY = 7, 8, 9
# Value type to the code that `struct` and `array` have for it.
_NUMBERS: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip


def read_gguf_metadata(path: Path, wanted: Callable[[str], bool]) -> dict[str, Any]:
    """The values of the keys that `wanted` accepts: int, float, bool, str, or a list of one of these.

    Raises ModelError if the file cannot be read or is no GGUF file of version 2 or 3.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Cursor(data).metadata(wanted)
    except OSError as error:
        raise ModelError(f"model: cannot read {path}: {error.strerror}") from error
    except (ValueError, struct.error) as error:  # an empty file cannot be mapped; a cut one ends inside a value
        raise ModelError(f"model: {path} is not a GGUF file this version can read: {error}") from error


class _Cursor:
    """A place in the file, moved on by each read. Raises ValueError or struct.error where the file is broken."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def metadata(self, wanted: Callable[[str], bool]) -> dict[str, Any]:
        if self._bytes(4) != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self._number("I")
        if version not in _VERSIONS:
            raise ValueError(f"its version is {version}, supported are little-endian 2 and 3")
        self._number("Q")  # tensors
        found: dict[str, Any] = {}
        for _ in range(self._number("Q")):
            key = self._text()
            value = self._value(self._number("I"))
            if wanted(key):
                found[key] = value
        return found

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._list()
        if kind not in _NUMBERS:
            raise ValueError(f"value type {kind} is not known")
        value = self._number(_NUMBERS[kind])
        return bool(value) if kind == _BOOL else value

    def _list(self) -> list[Any]:
        kind, count = self._number("I"), self._number("Q")
        # Each item takes a byte at least: a broken count must not make the loop run for ever.
        if count > len(self._data) - self._at:
            raise ValueError(f"an array of {count} items does not fit in the file")
        if kind in (_STRING, _ARRAY):
            return [self._value(kind) for _ in range(count)]
        if kind not in _NUMBERS:
            raise ValueError(f"array type {kind} is not known")
        code = _NUMBERS[kind]
        items = array.array(code)
        items.frombytes(self._bytes(count * struct.calcsize(f"<{code}")))
        if sys.byteorder == "big":
            items.byteswap()
        return [bool(item) for item in items] if kind == _BOOL else items.tolist()

    def _number(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._data, self._at)
        self._at += struct.calcsize(f"<{code}")
        return value

    def _text(self) -> str:
        # Vocabularies may hold pieces that are no UTF-8 by themselves.
        return self._bytes(self._number("Q")).decode("utf-8", "replace")

    def _bytes(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise ValueError("it ends inside its metadata")
        taken = self._data[self._at : end]
        self._at = end
        return taken
