"""One value of a setting: from what a file, the environment or a flag says to its type."""

from __future__ import annotations

import contextlib
import json
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tercet.errors import ConfigError


def convert(key: str, hint: Any, value: Any, *, in_bytes: bool) -> Any:
    """`value` as the type `hint`; strings are parsed, other values must have the type.

    `hint` is a Literal of strings, tuple[str, ...], str, bool, int or float; an int with `in_bytes` may end in KiB, MiB
    or GiB. Raises ConfigError naming `key`.
    """
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        # Not shown: it may have more digits than Python writes.
        raise ConfigError(key, f"must have at most {_MAX_BITS} bits, has {value.bit_length():,}")
    origin = typing.get_origin(hint)
    if origin is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise ConfigError(key, f"must be one of {', '.join(choices)}, is {value!r}")
        return value
    if origin is tuple:
        if isinstance(value, str):
            value = _parts(value)
        if not isinstance(value, (list, tuple)) or not all(isinstance(part, str) for part in value):
            raise ConfigError(key, f"must be a list of strings, is {value!r}")
        return tuple(_without_nul(key, part) for part in value)
    if hint is str and isinstance(value, str):
        return _without_nul(key, value)
    if hint is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in _BOOLEANS:
            return _BOOLEANS[value.lower()]
        raise ConfigError(key, f"must be true or false, is {value!r}")
    if hint in (int, float) and not isinstance(value, bool):
        try:
            if isinstance(value, (int, hint)):
                return hint(value)
            if isinstance(value, str):
                return _scaled(value) if in_bytes else hint(value)
        except (ValueError, OverflowError):
            pass
    suffixes = " of bytes (suffixes KiB, MiB, GiB allowed)" if in_bytes else ""
    raise ConfigError(key, f"must be {_TYPE_NAMES[hint]}{suffixes}, is {value!r}")


def list_text(values: Sequence[str]) -> str:
    """The text that `convert` makes a list of."""
    text = ",".join(values)
    return text if _parts(text) == list(values) else json.dumps(values)


def _parts(text: str) -> list[Any]:
    """Parts between commas; or those of a JSON list of strings, whose parts may have commas."""
    if text.lstrip().startswith('["'):
        with contextlib.suppress(ValueError):
            return list(json.loads(text))
    return [part.strip() for part in text.split(",") if part.strip()]


def _without_nul(key: str, text: str) -> str:
    """What can be a path, a name of a host and a variable of an environment. Raises ConfigError."""
    if "\0" in text:
        raise ConfigError(key, f"must hold no NUL character, is {text!r}")
    return text


# Of a whole number, as TOML has them.
_MAX_BITS = 63
_BOOLEANS: Mapping[str, bool] = types.MappingProxyType(
    {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
)
_TYPE_NAMES = {int: "a whole number", float: "a number", str: "a string"}
_SCALES = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def _scaled(text: str) -> int:
    """``512MiB`` and ``512`` as whole numbers. Raises ValueError, OverflowError."""
    lowered = text.strip().lower()
    for suffix, scale in _SCALES.items():
        if lowered.endswith(suffix):
            return int(float(lowered[: -len(suffix)]) * scale)
    return int(lowered)
