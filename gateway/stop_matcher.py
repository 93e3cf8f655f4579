"""Finds stop strings in text that arrives in pieces.

Of several matches the one that is complete first wins; of those complete at the same character, the first in the
request's list. Knows neither tokens nor streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string that was found. `start` counts characters from the start of the text."""

    stop_string: str
    start: int


class StopMatcher:
    """One text. After a match nothing more may be pushed.

    `num_safe` counts the characters at the start of the text that can never belong to a match. It stays behind the
    text only while the tail of the text is a proper prefix of a stop string. What is complete within text that does not
    count is no match.
    """

    __slots__ = ("_length", "_num_free", "_strings", "_tail", "num_safe")

    def __init__(self, strings: Sequence[str] = ()) -> None:
        self._strings = tuple(strings)
        self._tail = ""  # the last characters: those after num_safe
        self._length = 0
        # Characters at the start of the text in which no match ends.
        self._num_free = 0
        self.num_safe = 0

    def push(self, text: str, *, counts: bool = True) -> StopMatch | None:
        """Takes the next text. Returns the match that it completes, if any; `num_safe` then is the start of it. Text
        that does not count comes before all that does."""
        self._length += len(text)
        if not counts:
            self._num_free = self._length
        if not self._strings:
            self.num_safe = self._length
            return None
        window = self._tail + text
        base = self._length - len(window)
        best: tuple[int, str, int] | None = None
        for string in self._strings:
            found = window.find(string, max(0, self._num_free - base - len(string) + 1))
            if found >= 0 and (best is None or found + len(string) < best[0]):
                best = (found + len(string), string, found)
        if best is not None:
            self.num_safe = base + best[2]
            return StopMatch(best[1], self.num_safe)
        held = self._held(window)
        self._tail = window[len(window) - held :]
        self.num_safe = self._length - held
        return None

    def _held(self, window: str) -> int:
        """The length of the longest tail of `window` that is a proper prefix of a stop string."""
        held = 0
        for string in self._strings:
            for size in range(min(len(string) - 1, len(window)), held, -1):
                if window.endswith(string[:size]):
                    held = size
                    break
        return held
