"""Frozen dataclasses of JSON: each field is there and of its type, or the file is told to be wrong by the field's path.

Knows numbers, texts, None, tuples, mappings by text, and dataclasses of these.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from tercet.errors import LoadError

Record = TypeVar("Record")

_PLAIN = (bool, int, float, str, types.NoneType)
_UNIONS = (types.UnionType, Union)


class RunFileError(LoadError):
    """A file is not what `tercet bench run` writes."""


def from_data(kind: type[Record], data: object, where: str = "") -> Record:
    """A dataclass from what `dataclasses.asdict` and JSON made of one. Fields that have a default may be missing;
    those that are not known are left out, so that older readers read newer files. Raises RunFileError."""
    made: Record = _value(kind, data, where or kind.__name__)
    return made


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, Any, bool, frozenset[type]], ...]:
    """Name, type, whether it is needed, and the types of values that are right as they are."""
    hints = get_type_hints(kind)
    missing = dataclasses.MISSING
    found = []
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        choices = get_args(hint) if get_origin(hint) in _UNIONS else (hint,)
        plain = frozenset(each for each in _PLAIN if each in choices)
        needed = field.default is missing and field.default_factory is missing
        found.append((field.name, hint, needed, plain))
    return tuple(found)


def _value(kind: Any, data: object, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _record(kind, data, where)
    origin = get_origin(kind)
    if origin in _UNIONS:
        (some,) = (each for each in get_args(kind) if each is not types.NoneType)
        return None if data is None else _value(some, data, where)
    if kind is Any:
        return data
    if origin is tuple and isinstance(data, list):
        inner = get_args(kind)
        if inner[-1] is Ellipsis:
            return tuple(_value(inner[0], each, f"{where}[{index}]") for index, each in enumerate(data))
        if len(inner) == len(data):
            return tuple(_value(one, each, where) for one, each in zip(inner, data, strict=True))
    if origin is Mapping and isinstance(data, dict):
        inner = get_args(kind)[1]
        return {name: _value(inner, each, f"{where}.{name}") for name, each in data.items()}
    if kind is float and isinstance(data, int | float) and not isinstance(data, bool):
        return float(data)
    # A bool is an int to Python, and no count.
    if isinstance(kind, type) and isinstance(data, kind) and isinstance(data, bool) == (kind is bool):
        return data
    raise RunFileError(f"{where} is {_short(data)}")


def _record(kind: Any, data: object, where: str) -> Any:
    if not isinstance(data, dict):
        raise RunFileError(f"{where} is {_short(data)}, not an object")
    values = {}
    for name, inner, needed, plain in _fields(kind):
        if name in data:
            value = data[name]
            # Nearly all are, and a run has millions.
            values[name] = value if type(value) in plain else _value(inner, value, f"{where}.{name}")
        elif needed:
            raise RunFileError(f"{where} has no {name}")
    return kind(**values)


def _short(data: object) -> str:
    text = repr(data)
    return text if len(text) <= 40 else f"{text[:37]}..."
