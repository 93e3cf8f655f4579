"""What the ledger of a mesh says of requests whose clients we were."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from tercet.ledger.ledger import Ledger
from tercet.ledger.row import Outcome
from tercet.ledger.tables import requests

LOOK_S = 0.2
# Ids in one query.
MAX_IDS = 500


@dataclass(frozen=True, slots=True)
class Entry:
    """A row, as far as a client can know better."""

    outcome: Outcome
    reason: str
    generated_tokens: int | None
    delivered_tokens: int | None
    wasted_tokens: int | None

    @property
    def adds_up(self) -> bool:
        """Whether what was generated is what was delivered and wasted; what nobody knows is none of them."""
        parts = (self.delivered_tokens, self.wasted_tokens)
        if self.generated_tokens is None or None in parts:
            return parts == (None, None) and self.generated_tokens is None
        return self.generated_tokens == sum(part for part in parts if part is not None)


class Books:
    """A ledger, in an SQLite file or where a URL says, read beside those who write it."""

    def __init__(self, where: str) -> None:
        self._ledger = Ledger(where, time.time)

    def close(self) -> None:
        self._ledger.close()

    def of(self, request_ids: Collection[str]) -> Mapping[str, Sequence[Entry]]:
        """All rows of each of these requests that has some."""
        found: defaultdict[str, list[Entry]] = defaultdict(list)
        ids = sorted(request_ids)
        for start in range(0, len(ids), MAX_IDS):
            query = sa.select(requests).where(requests.c.request_id.in_(ids[start : start + MAX_IDS]))
            for row in self._ledger.read(query):
                tokens = (row.generated_tokens, row.delivered_tokens, row.wasted_tokens)
                found[row.request_id].append(Entry(Outcome(row.outcome), row.reason, *tokens))
        return found

    def closed(self, request_ids: Collection[str], limit_s: float) -> Mapping[str, Sequence[Entry]]:
        """The same once each has a row and none is open, or `limit_s` seconds are over."""
        give_up = time.monotonic() + limit_s
        while True:
            found = self.of(request_ids)
            whole = len(found) == len(request_ids)
            if whole and all(entry.outcome is not Outcome.OPEN for entries in found.values() for entry in entries):
                return found
            if time.monotonic() > give_up:
                return found
            time.sleep(LOOK_S)
