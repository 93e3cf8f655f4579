"""The directory of a GGUF file: metadata, and where the tensors are. Knows no architecture, no quantization maths.

An own reader rather than the gguf package's: it skips the vocabulary (1.8 s of 3 s for SmolLM2 otherwise), and checks
every length against the file's end, so that a broken download is a sentence and not a traceback.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from tercet.errors import ModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
_MAX_DIMS = 4
_KEPT_ARRAY_LENGTH = 4096

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: Mapping[int, struct.Struct] = {
    kind: struct.Struct(f"<{code}")
    for kind, code in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array of metadata. `values` is None for one of strings or of more than 4,096 items: a vocabulary."""

    length: int
    values: tuple[int | float | bool, ...] | None


GgufValue = int | float | bool | str | GgufArray


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor is. `shape` has the slowest dimension first, as in torch; offset and size are in bytes."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Metadata and tensors of a GGUF file whose parts all lie within it."""

    path: Path
    metadata: Mapping[str, GgufValue]
    tensors: Mapping[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Reads the directory of `path`, not its tensors. Raises ModelError for a file that is not whole or not GGUF."""
    try:
        size = path.stat().st_size
        if size == 0:
            raise ModelError(f"model: {path} is empty; a GGUF file is needed")
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Cursor(path, data, size).file()
    except OSError as error:
        raise ModelError(f"model: cannot read {path}: {error.strerror}") from error


class _Cursor:
    """A position in the file that never passes its end."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self._path = path
        self._data = data
        self._size = size
        self._at = 0

    def file(self) -> GgufFile:
        self._header()
        num_tensors, num_values = self._u64(), self._u64()
        metadata: dict[str, GgufValue] = {}
        for _ in range(num_values):
            key = self._string("a key")
            metadata[key] = self._value(self._u32(), key)
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise self._broken(f"general.alignment is {alignment!r}, not a power of two")
        infos = [self._tensor_info() for _ in range(num_tensors)]
        begin = -(-self._at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, kind, shape, offset in infos:
            if name in tensors:
                raise self._broken(f"it has two tensors {name}")
            tensors[name] = self._tensor(name, kind, shape, begin + offset)
        return GgufFile(self._path, metadata, tensors)

    def _header(self) -> None:
        magic = self._take(4)
        if magic != _MAGIC:
            raise self._broken(f"it begins with {magic!r} instead of {_MAGIC!r}")
        version = self._u32()
        if version not in _VERSIONS:
            hint = "; it is big-endian" if version & 0xFFFF == 0 else ""
            raise ModelError(
                f"model: {self._path} has GGUF version {version}{hint}; supported: little-endian versions "
                f"{', '.join(map(str, _VERSIONS))}"
            )

    def _tensor_info(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self._string("a tensor's name")
        num_dims = self._u32()
        if not 1 <= num_dims <= _MAX_DIMS:
            raise self._broken(f"tensor {name} has {num_dims} dimensions")
        dims = [self._u64() for _ in range(num_dims)]
        return name, self._u32(), tuple(reversed(dims)), self._u64()

    def _tensor(self, name: str, kind: int, shape: tuple[int, ...], offset: int) -> GgufTensor:
        try:
            quantization = GGMLQuantizationType(kind)
        except ValueError:
            raise ModelError(f"model: tensor {name} in {self._path} has the unknown type {kind}") from None
        block, block_bytes = GGML_QUANT_SIZES[quantization]
        if shape[-1] % block:
            raise self._broken(
                f"tensor {name} has rows of {shape[-1]}, not a multiple of {quantization.name}'s {block}"
            )
        num_bytes = math.prod(shape) // block * block_bytes
        if offset + num_bytes > self._size:
            raise ModelError(
                f"model: {self._path} is cut short: tensor {name} needs bytes up to {offset + num_bytes}, the file has "
                f"{self._size}; download it again"
            )
        return GgufTensor(name, quantization, shape, offset, num_bytes)

    def _value(self, kind: int, key: str) -> GgufValue:
        if kind == _STRING:
            return self._string(key)
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _SCALARS:
            raise self._broken(f"{key} has the unknown type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self, key: str) -> GgufArray:
        kind, length = self._u32(), self._u64()
        if kind == _STRING:
            for _ in range(length):
                self._skip(self._u64())
            return GgufArray(length, None)
        if kind not in _SCALARS:
            raise self._broken(f"{key} is an array of the type {kind}")
        width = _SCALARS[kind].size
        if length > _KEPT_ARRAY_LENGTH:
            self._skip(length * width)
            return GgufArray(length, None)
        return GgufArray(length, tuple(self._scalar(_SCALARS[kind]) for _ in range(length)))

    def _scalar(self, form: struct.Struct) -> int | float | bool:
        value: int | float | bool = form.unpack(self._take(form.size))[0]
        return value

    def _string(self, what: str) -> str:
        try:
            return self._take(self._u64()).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._broken(f"{what} is not UTF-8") from error

    def _u32(self) -> int:
        value: int = _U32.unpack(self._take(4))[0]
        return value

    def _u64(self) -> int:
        if self._at + 8 > self._size:
            raise self._cut()
        value: int = _U64.unpack_from(self._data, self._at)[0]
        self._at += 8
        return value

    def _take(self, count: int) -> bytes:
        begin = self._at
        self._skip(count)
        return self._data[begin : self._at]

    def _skip(self, count: int) -> None:
        if self._at + count > self._size:
            raise self._cut()
        self._at += count

    def _cut(self) -> ModelError:
        return self._broken(f"its directory runs past its end at byte {self._size}; download it again")

    def _broken(self, problem: str) -> ModelError:
        return ModelError(f"model: {self._path} is not a whole GGUF file: {problem}")
