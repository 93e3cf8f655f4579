"""One request's output on its way from the scheduler to its client: tokens in, whole deltas out.

A delta holds whole tokens, and of each all its text: a token waits while any character of it may still belong to a
stop string or to an unfinished character. What waits for the client is joined into one delta when it next asks, so a
client that keeps up gets every token at once and one that does not gets fewer, larger deltas. Knows no gRPC.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tercet.errors import EngineFaultError, RequestCancelledError, RequestError, SlowConsumerError

from .cancel import CancelCause
from .detokenizer import Detokenizer
from .stop_matcher import StopMatcher


@dataclass(frozen=True, slots=True)
class Chunk:
    """What became final since the last one. `token_offset` counts the tokens before it."""

    seq: int
    token_offset: int
    text: str
    token_ids: tuple[int, ...]


class EndReason(enum.Enum):
    """How the scheduler says a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Account:
    """What a sequence held: tokens, blocks, and seconds from admission to its prefill."""

    cached_tokens: int
    blocks_used: int
    blocks_freed: int
    queue_s: float


@dataclass(frozen=True, slots=True)
class SequenceEnd:
    """The scheduler's last word on a sequence. `stop_token_id` is set for STOP, `failure` for FAILED."""

    reason: EndReason
    account: Account
    stop_token_id: int | None = None
    failure: RequestError | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """How an output ended well: LENGTH, or STOP by an end token (nothing else set), a stop token or a stop string."""

    reason: EndReason
    stop_token_id: int | None = None
    stop_string: str | None = None


class Stream:
    """One output. The link calls `accept`, `push`, `end`, `close_account`; the client's handler the coroutines.

    It ends once: with `finish`, or with `error`. What comes after is dropped. At most `max_tokens_held` tokens wait
    for the client.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        stop_strings: Sequence[str],
        stop_token_ids: frozenset[int],
        max_tokens_held: int,
        clock: Callable[[], float],
    ) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stop_strings)
        self._stop_token_ids = stop_token_ids
        self._max_tokens_held = max_tokens_held
        self._clock = clock
        self._wake = asyncio.Event()
        # Tokens and characters received but not ready, and the (tokens, characters) counts at which both are whole.
        self._waiting_ids: list[int] = []
        self._waiting_text = ""
        self._marks: deque[tuple[int, int]] = deque()
        self._num_chars = 0
        self._ready_ids: list[int] = []
        self._ready_text: list[str] = []
        self._num_ready_chars = 0
        self._num_read = 0
        self._num_chunks = 0
        self.queue_position: int | None = None
        self.num_tokens = 0
        self.first_token_at: float | None = None
        self.finish: Finish | None = None
        self.error: RequestError | None = None
        # What the sequence held, and whether the last word on that has come: it may be that nobody knows.
        self.account: Account | None = None
        self.account_closed = False
        # Set while the handler waits in a place that only this call can get it out of.
        self.interrupt: Callable[[], object] | None = None

    @property
    def ended(self) -> bool:
        """Whether no more tokens will be taken."""
        return self.finish is not None or self.error is not None

    def accept(self, queue_position: int) -> None:
        """The scheduler admitted the request."""
        self.queue_position = queue_position
        self._wake.set()

    def push(self, token_id: int) -> CancelCause | None:
        """Takes the next token. Returns why the sequence need not go on, if so: the caller cancels it."""
        if self.ended:
            return None
        if self.num_tokens == 0:
            self.first_token_at = self._clock()
        self.num_tokens += 1
        self._waiting_ids.append(token_id)
        if self._take_text(self._detokenizer.push(token_id)):
            return CancelCause.STOP_STRING
        if not self._detokenizer.pending:
            self._marks.append((self.num_tokens, self._num_chars))
        self._advance()
        if len(self._ready_ids) > self._max_tokens_held:
            self.fail(
                SlowConsumerError(
                    f"the client left more than {self._max_tokens_held} tokens unread",
                    metadata={"max_stream_tokens": str(self._max_tokens_held)},
                )
            )
            return CancelCause.SLOW_CONSUMER
        return None

    def end(self, end: SequenceEnd) -> None:
        """Takes the scheduler's last word. After a stop string it only closes the account."""
        self.close_account(end.account)
        if self.ended:
            return
        if end.reason is EndReason.FAILED:
            self.fail(end.failure or EngineFaultError("the sequence failed for no stated reason"))
        elif end.reason is EndReason.CANCELLED:
            self.fail(end.failure or RequestCancelledError("the request was cancelled inside the mesh"))
        elif not self._take_text(self._detokenizer.finish()):
            self._make_ready(self.num_tokens, self._num_chars)
            own = end.reason is EndReason.STOP and end.stop_token_id in self._stop_token_ids
            self._finish(Finish(end.reason, stop_token_id=end.stop_token_id if own else None))

    def close_account(self, account: Account | None) -> None:
        """What the sequence held, None if that will never be known; the first word counts."""
        if not self.account_closed:
            self.account, self.account_closed = account, True
            self._wake.set()

    def fail(self, error: RequestError) -> None:
        """Ends the stream with an error, unless it has ended. A handler that hangs in a write is interrupted."""
        if self.ended:
            return
        self.error = error
        self._wake.set()
        if self.interrupt is not None:
            self.interrupt()

    async def wait_accepted(self) -> int:
        """The queue position at admission. Raises the error that came instead."""
        while self.queue_position is None:
            if self.error is not None:
                raise self.error
            await self._wait()
        return self.queue_position

    async def read(self) -> Chunk | None:
        """All that is ready, at least one token; None after the last. Raises the error that ended the stream."""
        while not self._ready_ids:
            if self.error is not None:
                raise self.error
            if self.finish is not None:
                return None
            await self._wait()
        if isinstance(self.error, SlowConsumerError):
            raise self.error
        chunk = Chunk(self._num_chunks, self._num_read, "".join(self._ready_text), tuple(self._ready_ids))
        self._num_chunks += 1
        self._num_read += len(self._ready_ids)
        self._ready_ids.clear()
        self._ready_text.clear()
        return chunk

    async def wait_account(self) -> Account | None:
        """What the sequence held, None if nobody knows. The caller bounds the wait."""
        while not self.account_closed:
            await self._wait()
        return self.account

    async def _wait(self) -> None:
        self._wake.clear()
        await self._wake.wait()

    def _take_text(self, text: str) -> bool:
        """Adds text that became final; whether it completed a stop string, which ends the stream."""
        if not text:
            return False
        self._waiting_text += text
        self._num_chars += len(text)
        match = self._matcher.push(text)
        if match is None:
            return False
        # All tokens up to the one that completed the match were generated and count; their text is cut before it.
        self._make_ready(self.num_tokens, match.start)
        self._finish(Finish(EndReason.STOP, stop_string=match.stop_string))
        return True

    def _advance(self) -> None:
        mark, num_safe = None, self._matcher.num_safe
        while self._marks and self._marks[0][1] <= num_safe:
            mark = self._marks.popleft()
        if mark is not None:
            self._make_ready(*mark)
            self._wake.set()

    def _make_ready(self, num_tokens: int, num_chars: int) -> None:
        take = len(self._waiting_ids) - (self.num_tokens - num_tokens)
        self._ready_ids += self._waiting_ids[:take]
        del self._waiting_ids[:take]
        size = num_chars - self._num_ready_chars
        if size > 0:
            self._ready_text.append(self._waiting_text[:size])
            self._waiting_text = self._waiting_text[size:]
            self._num_ready_chars = num_chars

    def _finish(self, finish: Finish) -> None:
        self.finish = finish
        self._wake.set()
