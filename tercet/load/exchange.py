"""One request and its answer, on the client's clock."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from tercet.patience import within

from .ask import Ask
from .target import AnswerError, Begun, Ended, Event, Piece, Target

# Seconds since the start of the point.
Clock = Callable[[], float]


@dataclass(slots=True, eq=False)
class Exchange:
    """What was seen of it. `moments` are those of messages with tokens. `sent_s` is None if it was never sent, `end_s`
    until it is over."""

    ask: Ask
    due_s: float
    sent_s: float | None
    moments: array[float] = field(default_factory=lambda: array("d"))
    tokens: int = 0
    begun: Begun | None = None
    ended: Ended | None = None
    error: AnswerError | None = None
    # The client lost interest, as it was to; or gave up at the end of the run.
    cancelled: bool = False
    broken_off: bool = False
    end_s: float | None = None


async def exchange(target: Target, seen: Exchange, clock: Clock, note: Callable[[Exchange, int], None]) -> None:
    """Sends the request and reads its answer into `seen`; `note` hears of each message with tokens, and how many. A
    task that is cancelled breaks the request off. Raises nothing but bugs."""
    try:
        async with aclosing(target.stream(seen.ask)) as events:
            while (event := await _next(events, seen, clock)) is not None:
                if isinstance(event, Piece):
                    seen.moments.append(clock())
                    seen.tokens += event.tokens
                    note(seen, event.tokens)
                    if seen.ask.cancel is not None and seen.tokens >= seen.ask.cancel.after_tokens:
                        seen.cancelled = True
                        break
                    if seen.ask.read_tokens_per_s is not None:
                        await asyncio.sleep(event.tokens / seen.ask.read_tokens_per_s)
                elif isinstance(event, Begun):
                    seen.begun = event
                else:
                    seen.ended = event
            # Before the stream is closed, which may wait for its server.
            seen.end_s = clock()
    except AnswerError as error:
        seen.error = error
    except asyncio.CancelledError:
        seen.broken_off = True
    if seen.end_s is None:
        seen.end_s = clock()


async def _next(events: AsyncGenerator[Event, None], seen: Exchange, clock: Clock) -> Event | None:
    """The next event; None at the end, or when the client does not want to wait for a first token any longer."""
    cancel = seen.ask.cancel
    if cancel is None or cancel.before_first_s is None or seen.tokens:
        return await anext(events, None)
    assert seen.sent_s is not None
    try:
        return await within(seen.sent_s + cancel.before_first_s - clock(), anext(events, None))
    except asyncio.TimeoutError:
        seen.cancelled = True
        return None
