"""A request's body to the JSON object that it must be. Pure.

JSON of few bytes can become many values, each of which costs a hundred times as much: so they are counted before
anything is made of them. Of a name that stands twice Python keeps the second without a word; here it is an error.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from tercet.errors import InvalidFieldError

# More than validation lets pass of anything: a context full of token ids, or a chat of 10,000 messages in parts.
MAX_VALUES = 300_000
_OTHERS = bytes(sorted(set(range(256)) - set(b'"[{,')))


def read_object(body: bytes) -> dict[str, Any]:
    """The object. Raises InvalidFieldError."""
    if not body.strip():
        raise InvalidFieldError("the body is empty; it must be a JSON object")
    _check_count(body)
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_object, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise InvalidFieldError("the body is not valid UTF-8") from None
    except json.JSONDecodeError as error:
        problem = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise InvalidFieldError(f"the body is not valid JSON: {problem}") from None
    except RecursionError:
        raise InvalidFieldError("the body is nested too deeply") from None
    except ValueError:
        # Of an integer with thousands of digits.
        raise InvalidFieldError("the body has a number that is too long") from None
    if not isinstance(value, dict):
        raise InvalidFieldError("the body must be a JSON object")
    return value


def _check_count(body: bytes) -> None:
    """Whether there are too many values, from above: all that begins one, outside of texts."""
    if len(body) < MAX_VALUES:
        return
    marks = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHERS)
    # Each text and each name has two quotes.
    pieces = marks.split(b'"', 4 * MAX_VALUES + 1)
    if len(pieces) > 4 * MAX_VALUES + 1 or sum(map(len, pieces[::2])) > MAX_VALUES:
        raise InvalidFieldError(f"the body has more than {MAX_VALUES} values")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InvalidFieldError(f"{twice[:64]!r} stands twice in one object", field=twice[:64])
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise InvalidFieldError(f"{text} is not JSON")
