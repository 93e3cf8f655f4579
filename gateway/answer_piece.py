"""What the characters of an answer are: text, or parts of the calls of tools."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """`size` characters of an answer: `text`, or part of call number `index`, or neither, since they are syntax.

    `name` begins a call. `arguments` are as written, piece by piece.
    """

    size: int
    text: str = ""
    index: int | None = None
    name: str = ""
    arguments: str = ""

    def cut(self, size: int) -> tuple[Piece, Piece] | None:
        """Its first `size` characters, and the others; None for what cannot be told in part."""
        if self.name or size <= 0:
            return None
        first = Piece(size, self.text[:size], self.index, "", self.arguments[:size])
        return first, Piece(self.size - size, self.text[size:], self.index, "", self.arguments[size:])


class PlainText:
    """All of an answer is text."""

    called = over = False

    def push(self, text: str) -> list[Piece]:
        """The next text."""
        return [Piece(len(text), text)] if text else []

    def finish(self) -> list[Piece]:
        """Nothing is left."""
        return []
