"""JSON that arrives character by character: where a value ends, and where it stops being one.

Knows nothing of what the value says.
"""

from __future__ import annotations

import enum
import re

from .json_field import MAX_DEPTH

WHITESPACE = " \t\n\r"
# Python reads no longer integers than some thousand digits; nobody writes numbers of a hundred.
_MAX_NUMBER_CHARS = 100
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_BEGIN = re.compile(r"-?|-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?[eE][+-]?[0-9]*")
_WORDS = {"t": "true", "f": "false", "n": "null"}


class _Expects(enum.Enum):
    """What the next character may begin or go on with."""

    VALUE = enum.auto()
    VALUE_OR_END = enum.auto()
    KEY = enum.auto()
    KEY_OR_END = enum.auto()
    COLON = enum.auto()
    COMMA_OR_END = enum.auto()
    STRING = enum.auto()
    ESCAPED = enum.auto()
    HEX = enum.auto()
    NUMBER = enum.auto()
    WORD = enum.auto()
    NOTHING = enum.auto()


class JsonScanner:
    """One value, an object, a list or a text. `done` once its last character was taken; then no more are."""

    def __init__(self) -> None:
        self.done = False
        self._expects = _Expects.VALUE
        # The closing character of each open object and list.
        self._open: list[str] = []
        self._is_key = False
        self._number = ""
        # What has to follow of a word, or how many digits of an escape.
        self._word = ""
        self._digits = 0

    def take(self, char: str) -> bool:
        """Whether the value goes on with this character; after a False it is broken."""
        expects = self._expects
        if expects is _Expects.STRING:
            return self._in_string(char)
        if expects is _Expects.ESCAPED:
            self._digits = 4 if char == "u" else 0
            self._expects = _Expects.HEX if char == "u" else _Expects.STRING
            return char in '"\\/bfnrtu'
        if expects is _Expects.HEX:
            self._digits -= 1
            if not self._digits:
                self._expects = _Expects.STRING
            return char in "0123456789abcdefABCDEF"
        if expects is _Expects.WORD:
            follows, self._word = self._word[:1], self._word[1:]
            if not self._word:
                self._end_value()
            return char == follows
        if expects is _Expects.NUMBER:
            longer = self._number + char
            if len(longer) <= _MAX_NUMBER_CHARS and _NUMBER_BEGIN.fullmatch(longer):
                self._number = longer
                return True
            if not _NUMBER.fullmatch(self._number):
                return False
            self._end_value()
        return char in WHITESPACE or self._between(char)

    def _between(self, char: str) -> bool:
        """Takes a character that is not within a text, number or word."""
        expects = self._expects
        if expects is _Expects.COLON:
            self._expects = _Expects.VALUE
            return char == ":"
        if expects in (_Expects.KEY, _Expects.KEY_OR_END) and char == '"':
            self._is_key = True
            self._expects = _Expects.STRING
            return True
        may_end = expects in (_Expects.KEY_OR_END, _Expects.VALUE_OR_END, _Expects.COMMA_OR_END)
        if may_end and self._open and char == self._open[-1]:
            self._open.pop()
            self._end_value()
            return True
        if expects is _Expects.COMMA_OR_END:
            self._expects = _Expects.KEY if self._open[-1] == "}" else _Expects.VALUE
            return char == ","
        return expects in (_Expects.VALUE, _Expects.VALUE_OR_END) and self._begin_value(char)

    def _begin_value(self, char: str) -> bool:
        if char == '"':
            self._is_key = False
            self._expects = _Expects.STRING
        elif char in "{[":
            self._open.append("}" if char == "{" else "]")
            self._expects = _Expects.KEY_OR_END if char == "{" else _Expects.VALUE_OR_END
            return len(self._open) <= MAX_DEPTH
        elif self._open and char in _WORDS:
            self._word = _WORDS[char][1:]
            self._expects = _Expects.WORD
        elif self._open and char in "-0123456789":
            # Not by itself: only what follows says where it ends.
            self._number = char
            self._expects = _Expects.NUMBER
        else:
            return False
        return True

    def _in_string(self, char: str) -> bool:
        if char == "\\":
            self._expects = _Expects.ESCAPED
        elif char == '"':
            if self._is_key:
                self._expects = _Expects.COLON
            else:
                self._end_value()
        return char >= " "

    def _end_value(self) -> None:
        self.done = not self._open
        self._expects = _Expects.COMMA_OR_END if self._open else _Expects.NOTHING
