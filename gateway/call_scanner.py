"""One call of a tool as models write it: an object of a name and arguments, character by character.

Knows nothing of what stands around it.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Set

from .json_scanner import WHITESPACE, JsonScanner

_ARGUMENTS = ("arguments", "parameters")
_KEYS = ("name", *_ARGUMENTS, "id", "type")


class Part(enum.Enum):
    """What a character is."""

    SYNTAX = enum.auto()
    ARGUMENTS = enum.auto()
    # No part of a call; the call is broken there.
    NONE = enum.auto()


class CallScanner:
    """One call of a tool named in `names`. Its arguments are an object; without any the call is one without arguments.

    `name` is set once it is known, `begun` once nothing before the arguments can break the call any more: it may be
    told to the client. `done` once its last character was taken; then no more are.
    """

    def __init__(self, names: Set[str]) -> None:
        self.name: str | None = None
        self.done = False
        self._names = names
        self._seen: set[str] = set()
        self._key = ""
        # The text or object that is being read, and of texts their characters.
        self._value: JsonScanner | None = None
        self._text = ""
        # What may come where no value is being read.
        self._expects = "{"

    @property
    def has_arguments(self) -> bool:
        """Whether some have begun."""
        return "arguments" in self._seen

    @property
    def begun(self) -> bool:
        """Whether it may be told."""
        return self.name is not None and (self.has_arguments or self.done)

    def take(self, char: str) -> Part:
        """What the next character is."""
        if self._value is not None:
            return self._take_value(self._value, char)
        if char in WHITESPACE:
            return Part.SYNTAX
        if char not in self._expects:
            return Part.NONE
        if char == "}":
            self.done = True
            return Part.SYNTAX if self.name is not None else Part.NONE
        if char == '"' or (char == "{" and self._key):
            self._text = ""
            self._value = JsonScanner()
            if self._key in _ARGUMENTS:
                self._seen.add("arguments")
            return self._take_value(self._value, char)
        self._expects = {"{": '"}', ":": "{" if self._key in _ARGUMENTS else '"', ",": '"'}[char]
        return Part.SYNTAX

    def _take_value(self, value: JsonScanner, char: str) -> Part:
        if not value.take(char):
            return Part.NONE
        is_arguments = self._key in _ARGUMENTS
        if not is_arguments:
            self._text += char
        if value.done:
            self._value = None
            if not self._end_value():
                return Part.NONE
        return Part.ARGUMENTS if is_arguments else Part.SYNTAX

    def _end_value(self) -> bool:
        """A key or the value of one has ended. Whether there may be such."""
        if not self._key:
            self._key = json.loads(self._text)
            kind = "arguments" if self._key in _ARGUMENTS else self._key
            self._expects = ":"
            if self._key not in _KEYS or kind in self._seen:
                return False
            if kind != "arguments":
                self._seen.add(kind)
            return True
        if self._key == "name":
            self.name = json.loads(self._text)
        self._key = ""
        self._expects = ",}"
        return self.name is None or self.name in self._names
