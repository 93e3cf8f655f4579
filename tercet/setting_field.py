"""Fields of a section of settings, and a section from the values that were given for it."""

from __future__ import annotations

import contextlib
import dataclasses
import typing
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, TypeVar

from tercet.errors import ConfigError
from tercet.setting_check import Check
from tercet.setting_value import convert

Section = TypeVar("Section")


def setting(default: Any, help: str, check: Check | None = None, *, in_bytes: bool = False) -> Any:
    """A field of a section. `check` returns what is wrong with a value, or None. `in_bytes`: takes KiB, MiB, GiB."""
    return field(default=default, metadata={"help": help, "check": check, "in_bytes": in_bytes})


def build(section: str, base: Section, values: Mapping[str, Any], problems: list[ConfigError]) -> Section:
    """`base` with the values that are given; what is wrong goes to `problems`, and what `base` has takes its place."""
    hints = typing.get_type_hints(type(base))
    converted: dict[str, Any] = {}
    for item in dataclasses.fields(base):  # type: ignore[arg-type]
        if item.name not in values:
            continue
        key = f"{section}.{item.name}"
        with noted(problems):
            value = convert(key, hints[item.name], values[item.name], in_bytes=item.metadata["in_bytes"])
            check = item.metadata["check"]
            if check is not None and (problem := check(value)) is not None:
                raise ConfigError(key, problem)
            converted[item.name] = value
    return dataclasses.replace(base, **converted)  # type: ignore[type-var]


@contextlib.contextmanager
def noted(problems: list[ConfigError]) -> Iterator[None]:
    """Collects a ConfigError instead of letting it end the reading."""
    try:
        yield
    except ConfigError as error:
        problems.append(error)
