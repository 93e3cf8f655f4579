"""Frozen dataclasses of JSON: each field is there and of its type, or the file is told to be wrong by the field's path.

Knows numbers, texts, None, tuples, mappings by text, and dataclasses of these. Counts are not negative, unless a field
is made with NEGATIVE_TOO.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
from collections.abc import Mapping
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from tercet.errors import LoadError

Record = TypeVar("Record")

_PLAIN = (bool, int, float, str, types.NoneType)
_NUMBERS = (int, float)
_UNIONS = (types.UnionType, Union)

# As the metadata of a field.
NEGATIVE_TOO: Final[Mapping[str, bool]] = {"negative": True}
# In whatever unit, nothing that is measured is as much.
_MOST = 1e15
# Of times, in whatever unit: a client may be early by a moment.
_EARLY = -0.1
# What is described in free form is that of one machine and one workload.
_DEEPEST = 32


class RunFileError(LoadError):
    """A file is not what `tercet bench run` writes."""


def from_data(kind: type[Record], data: object, where: str = "") -> Record:
    """A dataclass from what `dataclasses.asdict` and JSON made of one. Fields that have a default may be missing;
    those that are not known are left out, so that older readers read newer files. Raises RunFileError."""
    made: Record = _value(kind, data, where or kind.__name__)
    return made


def parsed(kind: type[Record], text: bytes) -> Record:
    """The same of JSON in UTF-8."""
    try:
        return from_data(kind, json.loads(text.decode("utf-8")))
    except RecursionError:
        raise RunFileError("it is nested too deeply") from None
    except ValueError as error:
        raise RunFileError(str(error)) from None


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, Any, bool, frozenset[type], float], ...]:
    """Name, type, whether it is needed, the types of values that are right as they are, and the least of counts."""
    hints = get_type_hints(kind)
    missing = dataclasses.MISSING
    found = []
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        choices = get_args(hint) if get_origin(hint) in _UNIONS else (hint,)
        plain = frozenset(each for each in _PLAIN if each in choices)
        needed = field.default is missing and field.default_factory is missing
        found.append((field.name, hint, needed, plain, -_MOST if field.metadata.get("negative") else 0.0))
    return tuple(found)


def _value(kind: Any, data: object, where: str, least: float = 0.0) -> Any:
    if dataclasses.is_dataclass(kind):
        return _record(kind, data, where)
    origin = get_origin(kind)
    if origin in _UNIONS:
        (some,) = (each for each in get_args(kind) if each is not types.NoneType)
        return None if data is None else _value(some, data, where, least)
    if kind is Any:
        return _anything(data, where)
    if origin is tuple and isinstance(data, list):
        inner = get_args(kind)
        if inner[-1] is Ellipsis:
            return tuple(_value(inner[0], each, f"{where}[{index}]") for index, each in enumerate(data))
        if len(inner) == len(data):
            return tuple(_value(one, each, where) for one, each in zip(inner, data, strict=True))
    if origin is Mapping and isinstance(data, dict):
        inner = get_args(kind)[1]
        return {name: _value(inner, each, f"{where}.{name}") for name, each in data.items()}
    # A bool is an int to Python, and no count.
    if kind is float and isinstance(data, int | float) and not isinstance(data, bool) and _is_time(data):
        return float(data)
    if kind is int and type(data) is int and least <= data <= _MOST:
        return data
    if kind in (bool, str) and isinstance(data, kind):
        return data
    raise RunFileError(f"{where} is {_short(data)}")


def _is_time(number: float) -> bool:
    # False of nan, too.
    return _EARLY <= number <= _MOST


def _anything(data: object, where: str, depth: int = 0) -> object:
    """The same, if it has no number that is none, and an end."""
    if depth > _DEEPEST:
        raise RunFileError(f"{where} is nested too deeply")
    if isinstance(data, dict):
        for name, each in data.items():
            _anything(each, f"{where}.{name}", depth + 1)
    elif isinstance(data, list):
        for index, each in enumerate(data):
            _anything(each, f"{where}[{index}]", depth + 1)
    elif isinstance(data, int | float) and not -_MOST <= data <= _MOST:
        raise RunFileError(f"{where} is {_short(data)}")
    return data


def _record(kind: Any, data: object, where: str) -> Any:
    if not isinstance(data, dict):
        raise RunFileError(f"{where} is {_short(data)}, not an object")
    values = {}
    for name, inner, needed, plain, least in _fields(kind):
        if name in data:
            value = data[name]
            of = type(value)
            # Nearly all are, and a run has millions.
            if of in plain and (of not in _NUMBERS or (_EARLY if of is float else least) <= value <= _MOST):
                values[name] = value
            else:
                values[name] = _value(inner, value, f"{where}.{name}", least)
        elif needed:
            raise RunFileError(f"{where} has no {name}")
    return kind(**values)


def _short(data: object) -> str:
    text = repr(data)
    return text if len(text) <= 40 else f"{text[:37]}..."
