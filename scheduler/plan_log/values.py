"""Values of the core as JSON data and back: events, commands, settings, and what a checkpoint holds.

A tuple is a list; what JSON has no form for is an object with one telling key (``enum``, ``bytes``, ``float``,
``error``, ``zeros``) or, for a class, ``is`` and its fields. ``ref`` points into a checkpoint.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tercet import errors
from tercet.errors import PlanFileError

from .shape import ATOMS, BLANK, BLANK_SETS, CLASSES, Shape, UnknownClassError, shape_of

# More tokens than any sequence has: a number above it is no length.
MAX_LENGTH = 1 << 24
# Ids have 64 bits on the wire.
MAX_ID = (1 << 64) - 1

# Counts of what the core goes through one by one, or makes: no real one is larger.
_COUNTS = {"cancels": 1 << 20, "max_num_seqs": 1 << 16}
_LENGTHS = ("zeros", "zero_list")
_AS_THEY_ARE = frozenset({type(None), bool, int, str, dict})


def encode(value: Any) -> Any:
    """JSON data of a value that never changes. What is a dict is taken for encoded. Raises UnknownClassError."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if kind is tuple:
        return [encode(each) for each in value]
    if kind is Copied:
        return encode_fields(*value)
    if kind is array:
        return value.tolist()
    if kind is bytes:
        return {"bytes": value.hex()}
    if isinstance(value, errors.RequestError):
        # What it says may be of a request; that there was one is enough to decide the same.
        return {"error": value.reason}
    shape = shape_of(kind)
    if shape.enum:
        return {"enum": f"{shape.name}.{value.name}"}
    if not shape.inline:
        raise UnknownClassError(kind)
    return encode_fields(shape, copied(shape, [value])[0])


class Copied(NamedTuple):
    """A value as a plan log keeps it, if it cannot be kept as it is."""

    shape: Shape
    fields: list[Any]


def kept(value: Any) -> Any:
    """What stands for a value that never changes until it is written: itself, if nothing of it has to be hidden.
    `encode` makes the same of both; this takes less memory than what it makes. Raises UnknownClassError."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is tuple:
        return tuple([kept(each) for each in value])
    if isinstance(value, errors.RequestError):
        return encode(value)
    shape = shape_of(kind)
    if shape.plain or not (shape.open or any(getattr(value, name) for name in shape.hidden)):
        return value
    (row,) = copied(shape, [value])
    for index in shape.open:
        row[index] = kept(row[index])
    return Copied(shape, row)


def copied(shape: Shape, values: Iterable[Any]) -> list[list[Any]]:
    """The fields of objects whose class has declared them; of what is hidden, only lengths."""
    rows = [list(each) for each in map(shape.read, values)]
    for index in shape.counted:
        for row in rows:
            row[index] = len(row[index])
    for index in shape.blank:
        for row in rows:
            row[index] = None
    return rows


def encode_fields(shape: Shape, fields: list[Any]) -> dict[str, Any]:
    """JSON data of what `copied` returned. Raises UnknownClassError."""
    data: dict[str, Any] = {"is": shape.name}
    for name, value in zip(shape.fields, fields, strict=True):
        data[name] = encode(value)
    for index in shape.counted:
        data[shape.fields[index]] = {"zero_list" if index in shape.lists else "zeros": fields[index]}
    return data


def decode(data: Any, resolve: Callable[[int], Any] | None = None) -> Any:
    """The value of JSON data; `resolve` finds what a ``ref`` points at. Raises PlanFileError."""
    if isinstance(data, list):
        return tuple(decode(each, resolve) for each in data)
    if not isinstance(data, dict):
        return data
    if "is" in data:
        return _decode_object(data, resolve)
    if len(data) != 1:
        raise PlanFileError(f"no value has the keys {', '.join(map(str, data))[:80]}")
    ((tag, content),) = data.items()
    if tag == "ref" and resolve is not None:
        return resolve(whole_number(content))
    decoder = _DECODERS.get(tag)
    if decoder is None:
        raise PlanFileError(f"no value is a {tag[:80]!r}")
    return decoder(content)


def lengths_in(data: Any) -> int:
    """All lengths in JSON data added up: how many zeros `decode` makes of it. Raises PlanFileError."""
    total = 0
    left = [data]
    while left:
        each = left.pop()
        if type(each) is dict:
            total += sum(whole_number(each[tag]) for tag in _LENGTHS if tag in each)
            each = each.values()
        left += [part for part in each if type(part) is dict or type(part) is list]
    return total


def whole_number(value: Any, most: int = MAX_LENGTH) -> int:
    """A count. Raises PlanFileError if it is none."""
    if type(value) is not int or not 0 <= value <= most:
        raise PlanFileError(f"{str(value)[:80]} is no whole number up to {most}")
    return value


def fields_of(data: dict[str, Any], names: tuple[str, ...], resolve: Callable[[int], Any] | None) -> dict[str, Any]:
    """The fields of an object by name. Raises PlanFileError unless they are `names`, no more and no less."""
    if len(data) != len(names) + 1 or not all(name in data for name in names):
        wrong = ", ".join(sorted(map(str, (data.keys() - {"is"}) ^ set(names))))
        raise PlanFileError(f"{data['is']} differs in: {wrong[:200]}; the file is of another version, or broken")
    return {name: decode_field(name, data[name], resolve) for name in names}


def decode_field(name: str, data: Any, resolve: Callable[[int], Any] | None) -> Any:
    """The value of a field; what is not written comes back empty. Raises PlanFileError."""
    if name in BLANK_SETS:
        return set()
    if name in _COUNTS:
        return whole_number(data, _COUNTS[name])
    return BLANK[name] if name in BLANK else decode(data, resolve)


def class_of(data: dict[str, Any]) -> type:
    """The class of an object. Raises PlanFileError."""
    cls = CLASSES.get(data["is"]) if isinstance(data["is"], str) else None
    if cls is None:
        raise PlanFileError(f"no class is called {str(data['is'])[:80]!r}")
    return cls


def _decode_object(data: dict[str, Any], resolve: Callable[[int], Any] | None) -> Any:
    cls = class_of(data)
    shape = shape_of(cls)
    if not shape.inline:
        raise PlanFileError(f"{shape.name} stands where only values can")
    fields = fields_of(data, shape.fields, resolve)
    try:
        return cls(**fields)
    except (errors.TenantError, TypeError) as error:
        # A plan of a tenant checks itself.
        raise PlanFileError(f"no {shape.name} is like this: {error}") from error


def _decode_enum(content: Any) -> Any:
    name, _, member = str(content).partition(".")
    cls = CLASSES.get(name)
    if cls is None or not shape_of(cls).enum or member not in cls.__members__:  # type: ignore[attr-defined]
        raise PlanFileError(f"no enum has {str(content)[:80]!r}")
    return cls[member]  # type: ignore[index]


def _decode_float(content: Any) -> float:
    if content not in ("inf", "-inf", "nan"):
        raise PlanFileError(f"{str(content)[:80]!r} is no number")
    return float(content)


def _decode_bytes(content: Any) -> bytes:
    try:
        return bytes.fromhex(content)
    except (TypeError, ValueError):
        raise PlanFileError(f"{str(content)[:80]!r} are no bytes") from None


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "enum": _decode_enum,
    "float": _decode_float,
    "bytes": _decode_bytes,
    "error": lambda content: errors.from_reason(str(content), "as it was recorded"),
    "zeros": lambda content: (0,) * whole_number(content),
    "zero_list": lambda content: [0] * whole_number(content),
}
