"""One output of a request: its tokens in, text and calls of tools of whole tokens out.

A delta holds whole tokens, and of each all its text: a token waits while any character of it may still belong to a
stop string or to an unfinished character, or while it is not known whether it is text or a call's. What begins a call
comes with the last of its tokens. Knows neither the client nor the request's other outputs.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .answer_piece import Piece, PlainText
from .detokenizer import Detokenizer
from .sequence_end import EndReason
from .stop_matcher import StopMatch, StopMatcher
from .token_logprobs import TokenLogprobs
from .tool_parser import ToolParser


@dataclass(frozen=True, slots=True)
class Finish:
    """How an output ended well: LENGTH, or STOP by an end token (nothing else set), a stop token, a stop string, or its
    only call. `called`: STOP behind calls of tools, all of them whole."""

    reason: EndReason
    stop_token_id: int | None = None
    stop_string: str | None = None
    called: bool = False


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of call number `index` of an output. The first one has `id` and `name`, all together its `arguments`."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Taken:
    """Tokens that became ready, `token_offset` of them before; their logprobs, if they have some; text and calls."""

    token_offset: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    tool_calls: tuple[ToolCallDelta, ...]


class Output:
    """The text of one sequence. Once `finish` is set, nothing more may be pushed; what is ready can still be taken.

    What stopped it, a string or one of `stop_token_ids`, is the end of the text if `include_stop`, so that nothing has
    to wait for what may be a stop string, and else no part of it. A string that the first `min_tokens` complete stops
    nothing. `num_tokens` counts the tokens pushed, `num_ready`
    those that the next `take` gives.
    """

    __slots__ = (
        "_detokenizer", "_include_stop", "_logprobs", "_marks", "_matcher", "_min_tokens", "_new_call_id", "_num_chars",
        "_num_ready_chars", "_num_settled_chars", "_num_taken", "_parser", "_pieces", "_plain", "_ready_calls",
        "_ready_ids", "_ready_text", "_stop_token_ids", "_unsafe_text", "_waiting_ids", "finish", "num_ready",
        "num_tokens",
    )  # fmt: skip

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        stop_strings: Sequence[str],
        stop_token_ids: frozenset[int],
        include_stop: bool = False,
        min_tokens: int = 0,
        parser: ToolParser | None = None,
        new_call_id: Callable[[], str] = str,
    ) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stop_strings)
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._parser = parser or PlainText()
        self._new_call_id = new_call_id
        self._plain = not stop_strings and parser is None
        self._stop_token_ids = stop_token_ids
        # Tokens received but not ready, and the (tokens, characters) counts at which both are whole.
        self._waiting_ids: list[int] = []
        self._marks: deque[tuple[int, int]] = deque()
        # What may yet belong to a stop string, and what is behind that, but not ready.
        self._unsafe_text = ""
        self._pieces: deque[Piece] = deque()
        # Of the text that ever waited: all characters, those in pieces, and those that became ready.
        self._num_chars = 0
        self._num_settled_chars = 0
        self._num_ready_chars = 0
        self._ready_ids: list[int] = []
        self._ready_text: list[str] = []
        self._ready_calls: list[ToolCallDelta] = []
        # Of the tokens that were not taken, ready or not.
        self._logprobs: deque[TokenLogprobs] = deque()
        self._num_taken = 0
        self.num_tokens = 0
        self.num_ready = 0
        self.finish: Finish | None = None

    def push(self, token_id: int, logprobs: TokenLogprobs | None = None) -> None:
        """Takes the next token, with its logprobs if all of them have some. One that completes a stop string, or the
        only call, sets `finish`. Raises ValueError if it has logprobs and one that waits has none, or the other way
        round."""
        if logprobs is not None:
            if len(self._logprobs) < self.num_tokens - self._num_taken:
                raise ValueError("logprobs of a token before are missing")
            self._logprobs.append(logprobs)
        elif self._logprobs:
            raise ValueError("logprobs of a token are missing")
        self.num_tokens += 1
        # It is never chosen before it ends the output: its text need not wait for the word that it did.
        dropped = token_id in self._stop_token_ids and not self._include_stop
        text = "" if dropped else self._detokenizer.push(token_id)
        if self._plain and not self._waiting_ids and not self._detokenizer.pending:
            # Nothing can hold it back, and nothing is held before it: the way of nearly all tokens.
            self._ready_ids.append(token_id)
            if text:
                self._ready_text.append(text)
            self.num_ready += 1
            return
        self._waiting_ids.append(token_id)
        if self._take_text(text):
            return
        if not self._detokenizer.pending:
            self._marks.append((self.num_tokens, self._num_chars))
        self._advance()

    def end(self, reason: EndReason, stop_token_id: int | None) -> None:
        """The sequence ended by itself, STOP or LENGTH: all of it is ready, unless its last text is a stop string."""
        if not self._take_text(self._detokenizer.finish()):
            self._add(self._parser.push(self._unsafe_text))
            self._make_all_ready()
            if self._parser.over:
                self.finish = Finish(EndReason.STOP, called=True)
                return
            stopped = reason is EndReason.STOP
            own = stopped and stop_token_id in self._stop_token_ids
            self.finish = Finish(
                reason, stop_token_id=stop_token_id if own else None, called=stopped and self._parser.called
            )

    def take(self) -> Taken:
        """What is ready."""
        logprobs = tuple(self._logprobs.popleft() for _ in range(self.num_ready)) if self._logprobs else ()
        taken = Taken(
            self._num_taken, "".join(self._ready_text), tuple(self._ready_ids), logprobs, tuple(self._ready_calls)
        )
        self._num_taken += self.num_ready
        self.num_ready = 0
        self._ready_ids.clear()
        self._ready_text.clear()
        self._ready_calls.clear()
        return taken

    def _take_text(self, text: str) -> bool:
        """Adds text that became final; whether it completed a stop string or the only call, which ends the output."""
        if not text:
            return False
        self._num_chars += len(text)
        match = self._matcher.push(text, counts=self.num_tokens > self._min_tokens)
        unsafe = self._unsafe_text + text
        num_safe = len(unsafe) - (self._num_chars - self._num_final(match))
        self._unsafe_text = unsafe[num_safe:]
        self._add(self._parser.push(unsafe[:num_safe]))
        # What is behind the only call is nothing, a stop string as well.
        stop_string = None if match is None or self._parser.over else match.stop_string
        if stop_string is None and not self._parser.over:
            return False
        # All tokens up to the one that completed it were generated and count; their text is cut before the match, or
        # behind it.
        self._make_all_ready()
        self.finish = Finish(EndReason.STOP, stop_string=stop_string, called=self._parser.called)
        return True

    def _num_final(self, match: StopMatch | None) -> int:
        """Characters of the text that are final."""
        if not self._include_stop:
            return self._matcher.num_safe
        return self._num_chars if match is None else match.start + len(match.stop_string)

    def _add(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self._pieces.append(piece)
            self._num_settled_chars += piece.size

    def _advance(self) -> None:
        mark, num_settled = None, self._num_settled_chars
        while self._marks and self._marks[0][1] <= num_settled:
            mark = self._marks.popleft()
        if mark is not None:
            self._make_ready(*mark)

    def _make_all_ready(self) -> None:
        """The output is over."""
        self._add(self._parser.finish())
        self._marks.clear()
        self._make_ready(self.num_tokens, math.inf)

    def _make_ready(self, num_tokens: int, num_chars: float) -> None:
        take = len(self._waiting_ids) - (self.num_tokens - num_tokens)
        self._ready_ids += self._waiting_ids[:take]
        del self._waiting_ids[:take]
        self.num_ready += take
        while self._pieces and self._num_ready_chars < num_chars:
            piece = self._pieces.popleft()
            if self._num_ready_chars + piece.size > num_chars:
                size = int(num_chars) - self._num_ready_chars
                first = piece.cut(size)
                if first is None:
                    self._pieces.appendleft(piece)
                    break
                piece, rest = first
                self._pieces.appendleft(rest)
            self._num_ready_chars += piece.size
            self._make_piece_ready(piece)

    def _make_piece_ready(self, piece: Piece) -> None:
        if piece.text:
            self._ready_text.append(piece.text)
        if piece.index is None:
            return
        if piece.name:
            self._ready_calls.append(ToolCallDelta(piece.index, self._new_call_id(), piece.name, piece.arguments))
        elif self._ready_calls and self._ready_calls[-1].index == piece.index:
            last = self._ready_calls[-1]
            self._ready_calls[-1] = dataclasses.replace(last, arguments=last.arguments + piece.arguments)
        else:
            self._ready_calls.append(ToolCallDelta(piece.index, "", "", piece.arguments))
