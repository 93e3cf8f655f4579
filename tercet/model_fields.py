"""Typed access to the fields of a model's configuration; what is wrong with one is a ModelError that names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tercet.errors import ModelError

# Damaged files hold numbers that would keep a loop or an allocation busy for days.
MAX_COUNT = 2**31 - 1
MAX_LAYERS = 4096

# No factor, length or epsilon of a model comes near; whole numbers past a float's range must not reach float().
_HUGE = 1e30


class Fields:
    """The fields of `origin` (a path, for errors). A field that is null counts as absent.

    `prefix` is what errors put before a field's name.
    """

    def __init__(self, values: Mapping[str, Any], origin: str, prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix
        self.origin = origin

    def __contains__(self, name: str) -> bool:
        """Whether the field is written down, be it as null."""
        return name in self._values

    def get(self, name: str) -> Any:
        """The raw value, or None."""
        return self._values.get(name)

    def count(self, name: str, default: int | None = None, minimum: int = 1, maximum: int = MAX_COUNT) -> int:
        """A whole number from `minimum` to `maximum`. Raises ModelError, also if absent without a default."""
        value = self._present(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.error(name, value, f"a whole number from {minimum} to {maximum}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above zero. Raises ModelError, also if absent without a default."""
        value = self._present(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < _HUGE:
            raise self.error(name, value, "a number above zero")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean. Raises ModelError."""
        value = self._present(name, default)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def error(self, name: str, value: object, supported: str) -> ModelError:
        """The error for a field whose value is not one of the supported."""
        return ModelError(f"model: {self._prefix}{name} in {self.origin} is {_shown(value)}; supported: {supported}")

    def _present(self, name: str, default: Any) -> Any:
        value = self._values.get(name)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"model: {self.origin} lacks the field {self._prefix}{name}")
        return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
