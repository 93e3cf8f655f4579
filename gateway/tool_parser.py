"""Calls of tools in the text of an answer, as it comes: which characters are text, which a call's arguments.

What it says depends on the text alone, not on where that is cut. What looks like a call and turns out to be none,
since its JSON is broken or nobody offered such a tool, is text as the model wrote it. A call is told when its arguments
begin, and they as they come: if they break later they end there, and the rest is text. Knows neither tokens nor
streams.
"""

from __future__ import annotations

import enum
from collections.abc import Set

from .answer_piece import Piece
from .call_scanner import CallScanner, Part
from .json_scanner import WHITESPACE
from .tool_format import ToolFormat

# What is longer before a call is told, or more space beside one, is text. No honest call is near it; and what is held
# is copied with each token.
MAX_HELD_CHARS = 8192
MAX_BLANKS = 256


class _State(enum.Enum):
    """Where in an answer the first of the held characters is."""

    # At its start, in a format with bare calls.
    START = enum.auto()
    TEXT = enum.auto()
    # Before a call: behind an opener or a separator, which are held.
    BEFORE = enum.auto()
    CALL = enum.auto()
    # Behind a call, before what closes it or separates it from the next.
    AFTER = enum.auto()
    # Behind all that belongs to a call.
    CLOSED = enum.auto()


class ToolParser:
    """One answer. The pieces of all `push` and `finish` are its characters in order, each in one.

    With `single` one call at most is told, and the answer is `over` behind a whole one: what follows is nothing.
    """

    def __init__(self, form: ToolFormat, names: Set[str], *, single: bool = False) -> None:
        self._form = form
        self._single = single
        self._names = names
        self._state = _State.START if form.bare else _State.TEXT
        # Characters of which nothing was said yet. Of those before `_at` it is known what they are if a call follows;
        # if none does, those before `_given_back` are text, whatever they are.
        self._held = ""
        self._at = 0
        self._given_back = 0
        self._in_list = False
        self._call = CallScanner(names)
        self._told = False
        # Arguments of a call that was not told yet.
        self._early = ""
        self._num_calls = 0
        self._num_whole = 0
        self._pieces: list[Piece] = []

    @property
    def called(self) -> bool:
        """Whether there were calls, and all of them are whole."""
        return 0 < self._num_calls == self._num_whole

    @property
    def over(self) -> bool:
        """Whether nothing may follow."""
        return self._single and self.called

    def push(self, text: str) -> list[Piece]:
        """Takes the next text. Returns what became known."""
        self._held += text
        while self._held and not self.over and self._step():
            pass
        return self._take()

    def finish(self) -> list[Piece]:
        """The answer is over: all that is left."""
        while self._held:
            if self._state in (_State.BEFORE, _State.CALL):
                self._give_up()
                while self._held and not self.over and self._step():
                    pass
            elif self.over or self._is_rest():
                self._settle(Piece(len(self._held)))
            else:
                self._settle(Piece(len(self._held), self._held))
        return self._take()

    def _step(self) -> bool:
        """Says what can be said of the characters held. Whether more can be, without others."""
        state = self._state
        if state is _State.TEXT:
            return self._text()
        if state is _State.CALL:
            return self._in_call()
        rest = self._held[self._at :].lstrip(WHITESPACE)
        if len(self._held) - self._at - len(rest) > MAX_BLANKS:
            return self._give_up() if state is _State.BEFORE else self._enter(_State.TEXT)
        if not rest:
            return False
        if state is _State.START:
            return self._before_call(rest) if rest[0] == "{" else self._enter(_State.TEXT)
        if state is _State.BEFORE:
            return self._before(rest)
        if state is _State.AFTER:
            return self._after(rest)
        return self._closed(rest)

    def _is_rest(self) -> bool:
        """Whether what is held behind a call is no more than space, and the beginning of what would follow."""
        rest = self._held.lstrip(WHITESPACE)
        if self._state is _State.AFTER:
            return self._form.closer.startswith(rest)
        return self._state is _State.CLOSED and self._form.opener.startswith(rest)

    def _enter(self, state: _State) -> bool:
        self._state = state
        self._at = 0
        return True

    def _text(self) -> bool:
        opener = self._form.opener
        found = self._held.find(opener)
        if found >= 0:
            self._settle(Piece(found, self._held[:found]))
            return self._open(len(opener))
        held = next(size for size in range(len(opener) - 1, -1, -1) if self._held.endswith(opener[:size]))
        size = len(self._held) - held
        self._settle(Piece(size, self._held[:size]))
        return False

    def _open(self, at: int) -> bool:
        """Behind an opener, which ends before the held character `at`."""
        self._in_list = False
        self._state = _State.BEFORE
        self._at = self._given_back = at
        return True

    def _before(self, rest: str) -> bool:
        if self._form.list_begin and not self._in_list and rest[0] == self._form.list_begin:
            self._in_list = True
            self._at = len(self._held) - len(rest) + 1
            return True
        wants_list = bool(self._form.list_begin) and not self._in_list
        if rest[0] == "{" and not wants_list:
            return self._before_call(rest)
        return self._give_up()

    def _before_call(self, rest: str) -> bool:
        self._at = len(self._held) - len(rest)
        self._given_back = self._given_back or self._at + 1
        self._call = CallScanner(frozenset() if self._single and self._num_calls else self._names)
        self._told = False
        self._early = ""
        self._state = _State.CALL
        return True

    def _in_call(self) -> bool:
        """Reads on in a call. Once it was told, nothing before `_at` is held."""
        call = self._call
        kind = Part.ARGUMENTS
        while self._at < len(self._held) and not call.done:
            found = call.take(self._held[self._at])
            if found is Part.NONE or (not self._told and self._at >= MAX_HELD_CHARS):
                break
            if self._told and found is not kind and self._at:
                self._tell(kind)
            if found is Part.ARGUMENTS and not self._told:
                self._early += self._held[self._at]
            kind = found
            self._at += 1
            if call.begun and not self._told:
                self._begin()
        else:
            if self._told and self._at:
                self._tell(kind)
            if not call.done:
                return False
            self._num_whole += 1
            return self._enter(_State.AFTER)
        if not self._told:
            return self._give_up()
        if self._at:
            self._tell(kind)
        return self._enter(_State.TEXT)

    def _begin(self) -> None:
        """Tells a call, and what there is of its arguments, by all that is held before `_at`."""
        call = self._call
        assert call.name is not None
        self._told = True
        self._given_back = 0
        self._settle(Piece(self._at, index=self._num_calls, name=call.name, arguments=self._early or "{}"))
        self._num_calls += 1

    def _tell(self, kind: Part) -> None:
        """Tells the held characters before `_at`, all of one kind, of a call that was told."""
        arguments = self._held[: self._at] if kind is Part.ARGUMENTS else ""
        self._settle(Piece(self._at, index=self._num_calls - 1 if arguments else None, arguments=arguments))

    def _give_up(self) -> bool:
        """No call follows what is held. What stands there may yet hold another."""
        self._settle(Piece(self._given_back, self._held[: self._given_back]))
        self._given_back = 0
        return self._enter(_State.TEXT)

    def _after(self, rest: str) -> bool:
        form = self._form
        if rest[0] in form.separators:
            self._state = _State.BEFORE
            self._at = self._given_back = len(self._held) - len(rest) + 1
            return True
        if form.bare:
            return self._before_call(rest) if rest[0] == "{" else self._enter(_State.CLOSED)
        if rest.startswith(form.closer):
            self._settle(Piece(len(self._held) - len(rest) + len(form.closer)))
            return self._enter(_State.CLOSED)
        return False if form.closer.startswith(rest) else self._enter(_State.TEXT)

    def _closed(self, rest: str) -> bool:
        opener = self._form.opener
        if rest.startswith(opener):
            return self._open(len(self._held) - len(rest) + len(opener))
        return False if opener.startswith(rest) else self._enter(_State.TEXT)

    def _settle(self, piece: Piece) -> None:
        if piece.size:
            self._pieces.append(piece)
            self._held = self._held[piece.size :]
            self._at = max(self._at - piece.size, 0)

    def _take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces
