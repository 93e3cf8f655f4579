"""One output of a request: its tokens in, text of whole tokens out.

A delta holds whole tokens, and of each all its text: a token waits while any character of it may still belong to a
stop string or to an unfinished character. Knows neither the client nor the request's other outputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from .detokenizer import Detokenizer
from .sequence_end import EndReason
from .stop_matcher import StopMatcher
from .token_logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Finish:
    """How an output ended well: LENGTH, or STOP by an end token (nothing else set), a stop token or a stop string."""

    reason: EndReason
    stop_token_id: int | None = None
    stop_string: str | None = None


class Output:
    """The text of one sequence. Once `finish` is set, nothing more may be pushed; what is ready can still be taken.

    `num_tokens` counts the tokens pushed, `num_ready` those that the next `take` gives.
    """

    __slots__ = (
        "_detokenizer", "_logprobs", "_marks", "_matcher", "_num_chars", "_num_ready_chars", "_num_taken", "_plain",
        "_ready_ids", "_ready_text", "_stop_token_ids", "_waiting_ids", "_waiting_text", "finish", "num_ready",
        "num_tokens",
    )  # fmt: skip

    def __init__(
        self, detokenizer: Detokenizer, *, stop_strings: Sequence[str], stop_token_ids: frozenset[int]
    ) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stop_strings)
        self._plain = not stop_strings
        self._stop_token_ids = stop_token_ids
        # Tokens and characters received but not ready, and the (tokens, characters) counts at which both are whole.
        self._waiting_ids: list[int] = []
        self._waiting_text = ""
        self._marks: deque[tuple[int, int]] = deque()
        # Of the text that ever waited: all characters, and those that became ready.
        self._num_chars = 0
        self._num_ready_chars = 0
        self._ready_ids: list[int] = []
        self._ready_text: list[str] = []
        # Of the tokens that were not taken, ready or not.
        self._logprobs: deque[TokenLogprobs] = deque()
        self._num_taken = 0
        self.num_tokens = 0
        self.num_ready = 0
        self.finish: Finish | None = None

    def push(self, token_id: int, logprobs: TokenLogprobs | None = None) -> None:
        """Takes the next token, with its logprobs if all of them have some. One that completes a stop string sets
        `finish`. Raises ValueError if it has logprobs and one that waits has none, or the other way round."""
        if logprobs is not None:
            if len(self._logprobs) < self.num_tokens - self._num_taken:
                raise ValueError("logprobs of a token before are missing")
            self._logprobs.append(logprobs)
        elif self._logprobs:
            raise ValueError("logprobs of a token are missing")
        self.num_tokens += 1
        text = self._detokenizer.push(token_id)
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
        if self._detokenizer.pending:
            self._advance()
        elif self._matcher.num_safe == self._num_chars:
            self._marks.clear()
            self._make_ready(self.num_tokens, self._num_chars)
        else:
            self._marks.append((self.num_tokens, self._num_chars))
            self._advance()

    def end(self, reason: EndReason, stop_token_id: int | None) -> None:
        """The sequence ended by itself, STOP or LENGTH: all of it is ready, unless its last text is a stop string."""
        if not self._take_text(self._detokenizer.finish()):
            self._make_ready(self.num_tokens, self._num_chars)
            own = reason is EndReason.STOP and stop_token_id in self._stop_token_ids
            self.finish = Finish(reason, stop_token_id=stop_token_id if own else None)

    def take(self) -> tuple[int, str, tuple[int, ...], tuple[TokenLogprobs, ...]]:
        """What is ready: tokens before it, its text, its token ids, and their logprobs, if they have some."""
        logprobs = tuple(self._logprobs.popleft() for _ in range(self.num_ready)) if self._logprobs else ()
        taken = self._num_taken, "".join(self._ready_text), tuple(self._ready_ids), logprobs
        self._num_taken += self.num_ready
        self.num_ready = 0
        self._ready_ids.clear()
        self._ready_text.clear()
        return taken

    def _take_text(self, text: str) -> bool:
        """Adds text that became final; whether it completed a stop string, which ends the output."""
        if not text:
            return False
        self._waiting_text += text
        self._num_chars += len(text)
        match = self._matcher.push(text)
        if match is None:
            return False
        # All tokens up to the one that completed the match were generated and count; their text is cut before it.
        self._make_ready(self.num_tokens, match.start)
        self.finish = Finish(EndReason.STOP, stop_string=match.stop_string)
        return True

    def _advance(self) -> None:
        mark, num_safe = None, self._matcher.num_safe
        while self._marks and self._marks[0][1] <= num_safe:
            mark = self._marks.popleft()
        if mark is not None:
            self._make_ready(*mark)

    def _make_ready(self, num_tokens: int, num_chars: int) -> None:
        take = len(self._waiting_ids) - (self.num_tokens - num_tokens)
        self._ready_ids += self._waiting_ids[:take]
        del self._waiting_ids[:take]
        self.num_ready += take
        size = num_chars - self._num_ready_chars
        if size > 0:
            self._ready_text.append(self._waiting_text[:size])
            self._waiting_text = self._waiting_text[size:]
            self._num_ready_chars = num_chars
