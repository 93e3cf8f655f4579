"""The three faults of clients, all at once, and what is left on the server when they are gone.

Some go away before the first token, some in mid-generation, some read slowly; others beside them do none of it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from tercet.ledger.row import Cancelled
from tercet.load.ask import Ask
from tercet.load.figures import percentile
from tercet.load.principals import Principal
from tercet.load.prompts import Source
from tercet.load.record import ServerSample
from tercet.load.target import AnswerError, Begun, Ended, Event, Piece, Target
from tercet.patience import within

from .findings import Findings
from .spec import FaultsSpec

_LOOK_S = 0.1
# Who leaves before the first token leaves when the server has taken the request, or after this long: some do not say
# that they have before they have a token.
_SOON_S = 0.05
# What a server does with who reads too slowly, which is one of the ends that are right.
_SLOW_CONSUMER = "SLOW_CONSUMER"


class Cancels(Protocol):
    """Who knows what became of cancels."""

    async def cancellations(self) -> Sequence[Cancelled] | None:
        """The latest; None: it does not say, or not to this client."""


@dataclass(frozen=True, slots=True)
class Deed:
    """What a client does: goes away after so many tokens, 0 is before the first one; or reads so slowly."""

    name: str
    leaves_after: int | None = None
    read_tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class End:
    """How one was over, as its client saw it. `problem` is empty if as it should be."""

    deed: Deed
    request_id: str
    problem: str


@dataclass(frozen=True, slots=True)
class FaultsSeen:
    """`left` is how the server was at last, None where it does not say; `freed_ms` of the cancels that it tells of."""

    ends: tuple[End, ...]
    left: ServerSample | None
    freed_ms: tuple[float, ...]


def deeds(spec: FaultsSpec) -> tuple[Deed, ...]:
    """Of all clients, in the order in which they ask."""
    kinds = (
        Deed("leaves before the first token", leaves_after=0),
        Deed("leaves in mid-generation", leaves_after=max(1, spec.max_tokens // 3)),
        Deed("reads slowly", read_tokens_per_s=spec.slow_tokens_per_s),
        Deed("reads on"),
    )
    return tuple(itertools.chain.from_iterable(itertools.repeat(kinds, spec.requests)))


async def commit(
    target: Target, spec: FaultsSpec, source: Source, cancels: Cancels, clock: Callable[[], float]
) -> FaultsSeen:
    """Does all of it, and waits until the server is idle, or for `settle_s`. Raises nothing for what goes wrong."""
    rng = random.Random("faults")
    tells = await target.look() is not None
    asks = [_ask(index, deed, source, spec, rng) for index, deed in enumerate(deeds(spec))]
    until = clock() + spec.timeout_s
    ends = await asyncio.gather(
        *(_accepted_end(target, ask, deed, clock, until) for ask, deed in zip(asks, deeds(spec), strict=True))
    )
    gone = {end.request_id for end in ends if end.deed.leaves_after is not None and end.request_id}
    give_up = clock() + spec.settle_s
    while True:
        left, known = await target.look(), await cancels.cancellations()
        freed = freed_ms(known or (), gone)
        # A look that failed is no reason to look no more.
        settled = not tells if left is None else is_idle(left)
        told = known is None or len(told_of(known, gone)) == len(gone)
        if (settled and told) or clock() >= give_up:
            return FaultsSeen(tuple(ends), left, tuple(freed.values()))
        await asyncio.sleep(_LOOK_S)


def _ask(index: int, deed: Deed, source: Source, spec: FaultsSpec, rng: random.Random) -> Ask:
    made = source.make(index, spec.prompt_tokens, None, rng)
    return Ask(
        index=index,
        due_s=None,
        principal=Principal(),
        prompt=made.prompt,
        prompt_tokens=made.tokens,
        max_tokens=spec.max_tokens,
        seed=index,
        timeout_s=spec.timeout_s,
        read_tokens_per_s=deed.read_tokens_per_s,
    )


async def _accepted_end(target: Target, ask: Ask, deed: Deed, clock: Callable[[], float], until: float) -> End:
    """One that is refused asks again when the server says so: what is not begun cannot be left."""
    while True:
        try:
            return await _end(target, ask, deed)
        except AnswerError as error:
            wait_s = max(_LOOK_S, error.retry_after_s or 0.0)
            if error.retry_after_s is None or clock() + wait_s >= until:
                return End(deed, "", f"refused: {error.reason}")
            await asyncio.sleep(wait_s)


async def _end(target: Target, ask: Ask, deed: Deed) -> End:
    """Raises AnswerError if it is refused."""
    request_id, tokens, ended = "", 0, None
    try:
        async with aclosing(target.stream(ask)) as events:
            while (event := await _next(events, deed)) is not None:
                if isinstance(event, Begun):
                    request_id = event.request_id
                elif isinstance(event, Piece):
                    tokens += event.tokens
                    if deed.read_tokens_per_s is not None:
                        await asyncio.sleep(event.tokens / deed.read_tokens_per_s)
                else:
                    ended = event
                if deed.leaves_after is not None and tokens >= deed.leaves_after:
                    return End(deed, request_id, "")
    except asyncio.TimeoutError:
        return End(deed, request_id, "")
    except AnswerError as error:
        if error.refused:
            raise
        return End(deed, request_id, "" if _is_right(deed, error) else error.reason)
    return End(deed, request_id, problem_of(ask, deed, ended))


async def _next(events: AsyncGenerator[Event, None], deed: Deed) -> Event | None:
    """The next event, None at the end. Raises asyncio.TimeoutError when its client has waited long enough."""
    if deed.leaves_after != 0:
        return await anext(events, None)
    return await within(_SOON_S, anext(events, None))


def _is_right(deed: Deed, error: AnswerError) -> bool:
    return deed.read_tokens_per_s is not None and error.reason == _SLOW_CONSUMER


def problem_of(ask: Ask, deed: Deed, ended: Ended | None) -> str:
    """Of one that came to its end. Pure, as all below."""
    if ended is None:
        return "the stream ended before its end"
    if deed.leaves_after is not None:
        return f"was over before its client left after {deed.leaves_after} tokens"
    if ended.output_tokens is not None and ended.output_tokens != ask.max_tokens:
        return f"had {ended.output_tokens} tokens of {ask.max_tokens}"
    return ""


def wrong_ends(seen: FaultsSeen) -> Findings:
    """Clients whose requests did not end as they should."""
    return Findings(
        len(seen.ends), tuple(f"one that {end.deed.name}: {end.problem}" for end in seen.ends if end.problem)
    )


def is_idle(sample: ServerSample) -> bool:
    """Whether nothing runs or waits and no block is in use."""
    return not requests_left(sample) and not sample.kv_used


def requests_left(sample: ServerSample) -> int:
    """What runs and what waits."""
    return sample.running + sample.queued


def told_of(known: Sequence[Cancelled], gone: set[str]) -> set[str]:
    """Those of `gone` that a mesh knows to be over."""
    return {each.request_id for each in known if each.request_id in gone and each.cancellation.done_s is not None}


def freed_ms(known: Sequence[Cancelled], gone: set[str]) -> Mapping[str, float]:
    """From the cancel until the last block was free, of those of `gone` that had blocks."""
    return {
        each.request_id: each.cancellation.freed_s * 1e3
        for each in known
        if each.request_id in gone and each.cancellation.freed_s is not None
    }


def freed_p99_ms(seen: FaultsSeen) -> float | None:
    """None if nobody tells."""
    return percentile(seen.freed_ms, 99) if seen.freed_ms else None
