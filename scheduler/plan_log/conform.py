"""Whether values have the types that they are declared with: what a damaged file holds, or leads to, often has not."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Any

from .shape import ATOMS, hints_of, is_inline

_LISTS = frozenset({list, set, frozenset, deque})
_MAPPINGS = frozenset({dict, OrderedDict, Counter, Mapping})
_NUMBERS = frozenset({int, float})


def conforms(value: Any, hint: Any) -> bool:
    """Whether a value has the type that its field is declared with, and so on inside it. Objects that can change have
    to be of the class; what is in them is asked with `strange_field`, object by object."""
    if hint in ATOMS:
        return type(value) in _NUMBERS if hint is float else type(value) is hint
    if hint is Any:
        return True
    if hint is None:
        return value is None
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is typing.Union or origin is types.UnionType:
        return any(conforms(value, each) for each in arguments)
    if origin is tuple:
        if type(value) is not tuple:
            return False
        if len(arguments) == 2 and arguments[1] is ...:
            return _all_conform(value, arguments[0])
        return len(value) == len(arguments) and all(map(conforms, value, arguments))
    if origin in _LISTS:
        return type(value) is origin and _all_conform(value, arguments[0])
    if origin in _MAPPINGS:
        values = int if origin is Counter else arguments[1]
        return isinstance(value, origin) and _all_conform(value, arguments[0]) and _all_conform(value.values(), values)
    if origin is not None:
        return isinstance(value, origin)
    if not isinstance(value, hint):
        return False
    if dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"):
        return type(value) is hint and (not is_inline(hint) or strange_field(value) is None)
    return True


def strange_field(value: object) -> str | None:
    """The first declared field of an object that has not the type that it is declared with."""
    for name, hint in hints_of(type(value)).items():  # type: ignore[arg-type]
        # Of an object that was restored an attribute may be missing.
        if not conforms(getattr(value, name, ...), hint):
            return name
    return None


def _all_conform(values: Iterable[Any], hint: Any) -> bool:
    # Of numbers there can be millions.
    if hint in ATOMS:
        return set(map(type, values)) <= (_NUMBERS if hint is float else {hint})
    return all(conforms(each, hint) for each in values)
