"""JSON inside a field of a request: small enough to walk, of text that can be encoded.

Knows nothing of what it is about.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from tercet.errors import InvalidFieldError

# Of lists and objects within each other. Schemas of tools have some ten.
MAX_DEPTH = 64


def read_json_object(text: str, field: str) -> dict[str, Any]:
    """The object that a text is. Raises InvalidFieldError on `field` for anything else, for numbers that are not
    finite, and for what is nested deeper than MAX_DEPTH or holds half a character."""
    try:
        value = json.loads(text, parse_constant=refuse_constant, parse_float=_finite)
    except RecursionError:
        raise _too_deep(field) from None
    except ValueError as error:
        raise InvalidFieldError(f"{field} is not JSON: {error}", field=field) from None
    if not isinstance(value, dict):
        raise InvalidFieldError(f"{field} must be a JSON object", field=field)
    _check(value, field, MAX_DEPTH)
    return value


def texts_in(value: Any) -> Iterator[str]:
    """Every text of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The same value with every text, keys included, changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): with_texts(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [with_texts(item, change) for item in value]
    return value


def _check(value: Any, field: str, depth_left: int) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            # JSON can spell one by its number.
            raise InvalidFieldError(f"{field} holds half of a surrogate pair", field=field) from None
    elif isinstance(value, (dict, list)):
        if not depth_left:
            raise _too_deep(field)
        for item in value.values() if isinstance(value, dict) else value:
            _check(item, field, depth_left - 1)
        for key in value if isinstance(value, dict) else ():
            _check(key, field, depth_left)


def _too_deep(field: str) -> InvalidFieldError:
    return InvalidFieldError(f"{field} is nested more than {MAX_DEPTH} deep", field=field)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:32]} is too large")
    return value


def refuse_constant(name: str) -> NoReturn:
    """Raises ValueError: for Python's reader, of NaN and infinities."""
    raise ValueError(f"{name} is not JSON")
