"""Clients whose mesh may break, and whether what came of them may have.

Knows no faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from bench.books import Entry
from tercet import errors
from tercet.client import AsyncClient, Delta, Finished
from tercet.ledger.row import Outcome

MAX_TOKENS = 160
FINISHED = "finished"


@dataclass(slots=True)
class Stream:
    """A client's request, and all that came of it."""

    request_id: str
    seed: int
    token_ids: list[int] = field(default_factory=list)
    # What the contract allows once.
    ends: list[str] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def finished(self) -> bool:
        """Whether it ended well."""
        return self.ends == [FINISHED]


async def follow(client: AsyncClient, stream: Stream) -> None:
    """Until the end of a stream, however it ends."""
    try:
        async for event in client.generate(
            f"stream {stream.seed}",
            request_id=stream.request_id,
            temperature=0.9,
            seed=stream.seed,
            max_tokens=MAX_TOKENS,
            ignore_eos=True,
        ):
            if isinstance(event, Delta):
                stream.token_ids += event.token_ids
                stream.begun.set()
            elif isinstance(event, Finished):
                stream.ends.append(FINISHED)
    except errors.RequestError as error:
        stream.ends.append(error.reason)
    finally:
        stream.begun.set()


def judge(stream: Stream, undisturbed: Sequence[int], explained: Collection[str]) -> list[str]:
    """What of a stream cannot be: it has one end, FINISHED or an `explained` reason, and got what it would have got
    undisturbed, all of it or its beginning."""
    got, problems = stream.token_ids, []
    if len(stream.ends) != 1:
        problems.append(f"seed {stream.seed} has had {len(stream.ends)} ends: {stream.ends}")
    if got != list(undisturbed[: len(got)]):
        problems.append(f"seed {stream.seed} got what it would not have, behind the first {_same(got, undisturbed)}")
    if FINISHED in stream.ends and len(got) != len(undisturbed):
        problems.append(f"seed {stream.seed} finished with {len(got)} of {len(undisturbed)} tokens")
    strange = set(stream.ends) - {FINISHED, *explained}
    return problems + [f"seed {stream.seed} ended with {end}, which nothing explains" for end in strange]


def judge_entries(stream: Stream, entries: Sequence[Entry], *, may_be_lost: bool, whole: bool) -> list[str]:
    """What of the ledger's rows of a stream cannot be. `may_be_lost`: its gateway may not have written its end.
    `whole`: nothing was done to the client's connection, so it got all that was delivered, and the row's end."""
    if len(entries) != 1:
        return [f"seed {stream.seed} has {len(entries)} rows in the ledger: {entries}"]
    (entry,) = entries
    if entry.outcome is Outcome.OPEN:
        return [f"seed {stream.seed} has a row that is open"]
    if not entry.adds_up:
        return [f"seed {stream.seed} has a row that does not add up: {entry}"]
    if may_be_lost and entry.outcome is Outcome.LOST:
        return []
    # What was on its way to a client that was cut off may have been handed over, and the other way round.
    if not stream.finished and not whole:
        return []
    same_end = entry.outcome is Outcome.COMPLETED if stream.finished else entry.reason in stream.ends
    if same_end and entry.delivered_tokens == len(stream.token_ids):
        return []
    return [f"seed {stream.seed} got {len(stream.token_ids)} tokens and {stream.ends}, and the ledger says {entry}"]


def _same(got: Sequence[int], whole: Sequence[int]) -> int:
    """How many tokens are the same from the beginning."""
    return next((index for index, (one, other) in enumerate(zip(got, whole, strict=False)) if one != other), len(whole))
