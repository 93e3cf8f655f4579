"""Tensors of a Hugging Face directory: one model.safetensors, or shards with an index. Knows no architecture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from tercet.errors import ModelError

from ..model.tensors import Shape

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_FLOATS = ("F64", "F32", "F16", "BF16")


class SafetensorsFiles:
    """A TensorSource over the directory's files. All headers are read at the start, tensors when asked for."""

    def __init__(self, directory: Path) -> None:
        """Raises ModelError for a missing, broken or inconsistent file."""
        self.origin = str(directory)
        self._files: dict[str, Any] = {}
        self._shapes: dict[str, Shape] = {}
        self._file_of: dict[str, str] = {}
        single = directory / SINGLE_FILE
        index = directory / INDEX_FILE
        if single.is_file():
            self._open(single)
        elif index.is_file():
            self._open_shards(directory, index)
        else:
            raise ModelError(_no_weights(directory))

    def shapes(self) -> Mapping[str, Shape]:
        """The shape of every tensor in the directory."""
        return self._shapes

    def stored_name(self, name: str) -> str:
        """Names are the checkpoint's own."""
        return name

    def read(self, name: str) -> Tensor:
        """The tensor in its stored dtype. Raises ModelError for a dtype that is not floating, or unreadable bytes."""
        file = self._file_of[name]
        try:
            dtype = self._files[file].get_slice(name).get_dtype()
            if dtype not in _FLOATS:
                raise ModelError(f"model: {name} in {file} has the type {dtype}; supported: {', '.join(_FLOATS)}")
            tensor: Tensor = self._files[file].get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"model: cannot read {name} in {file}: {error}") from error
        return tensor

    def _open_shards(self, directory: Path, index: Path) -> None:
        shards = _weight_map(index)
        absent = sorted({shard for shard in shards.values() if not (directory / shard).is_file()})
        if absent:
            needed = len(set(shards.values()))
            raise ModelError(
                f"model: {directory} lacks {', '.join(absent)}; {INDEX_FILE} names {needed} shards, "
                f"{needed - len(absent)} are there"
            )
        for shard in sorted(set(shards.values())):
            there = self._open(directory / shard)
            for name in (name for name, holder in shards.items() if holder == shard):
                if name not in there:
                    raise ModelError(f"model: {directory / shard} lacks {name}, which {INDEX_FILE} says it has")

    def _open(self, path: Path) -> set[str]:
        """Adds the tensors of one file and returns their names."""
        try:
            file: Any = safe_open(path, framework="pt")
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ModelError(f"model: {path} is not a whole safetensors file: {error}") from error
        self._shapes.update(shapes)
        self._file_of.update(dict.fromkeys(shapes, str(path)))
        self._files[str(path)] = file
        return set(shapes)


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor name → shard file name. Raises ModelError."""
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"model: cannot read {index}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"model: {index} is not valid JSON: {error}") from error
    shards = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(shards, dict) or not shards or not all(isinstance(shard, str) for shard in shards.values()):
        raise ModelError(f"model: {index} needs a weight_map of tensor names to file names")
    # An index comes with the download; it must not reach outside its directory.
    strangers = sorted({shard for shard in shards.values() if Path(shard).name != shard})
    if strangers:
        raise ModelError(f"model: {index} names files outside its directory: {', '.join(strangers)}")
    return shards


def _no_weights(directory: Path) -> str:
    found = sorted(
        path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.safetensors") for path in directory.glob(pattern)
    )
    there = f"; found {', '.join(found[:5])}, which cannot be used" if found else ""
    return f"model: {directory} has no weights: needs {SINGLE_FILE}, or {INDEX_FILE} and its shards{there}"
