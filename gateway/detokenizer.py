"""Tokens of one stream to text, as they come.

Bytes wait until they form a character; what can never become one turns into U+FFFD, a started character at the end
too. Knows neither vocabulary nor stop strings.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """One stream. The concatenated results of `push` and `finish` are the text of all tokens, wherever it is cut.

    `piece` gives what a token adds: str where that is whole characters, else bytes. With `strip_leading_space` one
    space at the very start is dropped: vocabularies with ▁ put it before the first word.
    """

    __slots__ = ("_decoder", "_piece", "_strip", "pending")

    def __init__(self, piece: Callable[[int], str | bytes], *, strip_leading_space: bool = False) -> None:
        self._piece = piece
        self._decoder: codecs.IncrementalDecoder | None = None
        self._strip = strip_leading_space
        # Whether bytes of an unfinished character wait for the next token.
        self.pending = False

    def push(self, token_id: int) -> str:
        """The text that became final with this token; may be empty."""
        piece = self._piece(token_id)
        if self.pending or isinstance(piece, bytes):
            # A special or empty token does not come between the bytes of a character.
            if not piece:
                return ""
            if self._decoder is None:
                self._decoder = _Utf8Decoder("replace")
            text = self._decoder.decode(piece if isinstance(piece, bytes) else piece.encode())
            self.pending = bool(self._decoder.getstate()[0])
        else:
            text = piece
        return self._stripped(text) if self._strip and text else text

    def finish(self) -> str:
        """The text of what is pending, at the end of the stream."""
        if self._decoder is None or not self.pending:
            return ""
        self.pending = False
        return self._stripped(self._decoder.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if not self._strip:
            return text
        self._strip = False
        return text[1:] if text.startswith(" ") else text
