"""In what two descriptions of a workload or an environment differ. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Difference:
    """`key` is dotted. None: it is not there, or nobody knows it."""

    key: str
    a: Any
    b: Any


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Difference, ...]:
    """By key, in the order of A, then what B alone has."""
    one, other = dict(flat(a)), dict(flat(b))
    keys = dict.fromkeys([*one, *other])
    return tuple(Difference(key, one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key))


def flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values by their dotted keys; things of a list by their number, an empty name is a *."""
    for key, value in data.items():
        name = f"{prefix}{key or '*'}"
        if isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
            value = {str(number): each for number, each in enumerate(value)}
        if isinstance(value, Mapping):
            yield from flat(value, f"{name}.")
        else:
            yield name, value
