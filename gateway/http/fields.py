"""The fields of a JSON object, each of the type it has to be, and none left without a word. Pure.

null is the same as nothing. What is wrong is an InvalidFieldError with the field's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tercet.errors import InvalidFieldError

_SHOWN_CHARS = 64


class Fields:
    """One object; `where` is its path, for what is wrong in it. Each field is taken once, and `refuse_rest` ends it."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self._left = {name: value for name, value in values.items() if value is not None}
        self._where = where

    def path(self, name: str) -> str:
        """A field's name, as the client has to look for it."""
        return f"{self._where}.{name}" if self._where else name

    def take(self, name: str) -> Any:
        """A value of any type; None without one."""
        return self._left.pop(name, None)

    def number(self, name: str) -> float | None:
        """A number; whether it is a possible one is for others to say."""
        value = self.take(name)
        if value is None:
            return None
        try:
            return float(_as_number(value))
        except (TypeError, OverflowError):
            raise self._wrong(name, value, "a number") from None

    def integer(self, name: str, low: int, high: int) -> int | None:
        """A whole number in low .. high."""
        value = self.take(name)
        return None if value is None else self.as_integer(name, value, low, high)

    def flag(self, name: str) -> bool | None:
        """true or false."""
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, name: str) -> str | None:
        """A text that UTF-8 can hold."""
        value = self.take(name)
        return None if value is None else self.as_text(name, value)

    def required_text(self, name: str) -> str:
        """A text that has to be there."""
        text = self.text(name)
        if text is None:
            raise self.missing(name)
        return text

    def json(self, name: str) -> str:
        """An object, as JSON; empty without one."""
        value = self.take(name)
        return "" if value is None else self.as_json(name, value)

    def members(self, name: str) -> Sequence[Any] | None:
        """A list."""
        value = self.take(name)
        if value is not None and not isinstance(value, list):
            raise self._wrong(name, value, "a list")
        return value

    def inner(self, name: str) -> Fields | None:
        """An object."""
        value = self.take(name)
        return None if value is None else self.as_object(name, value)

    def integers(self, name: str, low: int, high: int) -> list[int]:
        """A list of whole numbers; empty without one."""
        values = self.members(name) or ()
        return [self.as_integer(f"{name}[{index}]", value, low, high) for index, value in enumerate(values)]

    def texts(self, name: str) -> list[str]:
        """A list of texts; empty without one."""
        values = self.members(name) or ()
        return [self.as_text(f"{name}[{index}]", value) for index, value in enumerate(values)]

    def by_number(self, highest: int) -> list[tuple[int, float]]:
        """All fields that are left, whose names are whole numbers in 0 .. highest, and whose values are numbers."""
        out: list[tuple[int, float]] = []
        for name in list(self._left):
            # Longer ones are too large; Python reads more digits than ASCII has, and signs.
            if not (name.isascii() and name.isdigit() and len(name) <= 20 and int(name) <= highest):
                raise InvalidFieldError(
                    f"{name[:_SHOWN_CHARS]!r} in {self._where} must be a token id", field=self._where
                )
            value = self.number(name)
            assert value is not None
            out.append((int(name), value))
        return out

    def as_integer(self, name: str, value: Any, low: int, high: int) -> int:
        """The whole number that a value must be."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(name, value, "a whole number")
        if not low <= value <= high:
            raise self._wrong(name, value, f"in [{low}, {high}]")
        return value

    def as_text(self, name: str, value: Any) -> str:
        """The text that a value must be."""
        if not isinstance(value, str):
            raise self._wrong(name, value, "a text")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                problem = f"{self.path(name)} has half a surrogate pair, which is no character"
                raise InvalidFieldError(problem, field=self.path(name)) from None
        return value

    def as_object(self, name: str, value: Any) -> Fields:
        """The object that a value must be."""
        if not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        return Fields(value, self.path(name))

    def as_json(self, name: str, value: Any) -> str:
        """The object that a value must be, as JSON."""
        if not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        try:
            return self.as_text(name, json.dumps(value, ensure_ascii=False))
        except RecursionError:
            raise InvalidFieldError(f"{self.path(name)} is nested too deeply", field=self.path(name)) from None

    def only_type(self, offered: str) -> None:
        """Takes `type`, of which there is one."""
        kind = self.required_text("type")
        if kind != offered:
            path = self.path("type")
            raise InvalidFieldError(f"{path} is {_shown(kind)}; only {offered} is offered", field=path)

    def only(self, neutral: Mapping[str, Sequence[Any]]) -> None:
        """Refuses what is not offered: these fields may be there only with values that ask for nothing."""
        for name, values in neutral.items():
            value = self.take(name)
            if value is not None and not any(type(value) is type(each) and value == each for each in values):
                raise InvalidFieldError(f"{self.path(name)} is not offered", field=self.path(name))

    def ignored(self, names: Sequence[str]) -> list[str]:
        """Takes fields that change nothing; the names of those that were there."""
        return [self.path(name) for name in names if self.take(name) is not None]

    def refuse_rest(self) -> None:
        """Raises InvalidFieldError for a field that nobody took."""
        for name in self._left:
            path = self.path(name[:_SHOWN_CHARS])
            raise InvalidFieldError(f"there is no parameter {path!r} here", field=path)

    def missing(self, name: str) -> InvalidFieldError:
        """The error of a field that has to be there."""
        return InvalidFieldError(f"{self.path(name)} is required", field=self.path(name))

    def _wrong(self, name: str, value: Any, wanted: str) -> InvalidFieldError:
        path = self.path(name)
        return InvalidFieldError(f"{path} is {_shown(value)}; it must be {wanted}", field=path)


def _as_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError
    return value


def _shown(value: Any) -> str:
    """A value in an error, without all of it."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) >= 10**_SHOWN_CHARS:
        return "a very large number"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
