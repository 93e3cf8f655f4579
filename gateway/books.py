"""What the gateway writes into the ledger: a row for each request, opened and closed, and refusals by their count.

Knows no database and no calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tercet.errors import LedgerLostError
from tercet.ledger.prices import Prices, prices_of
from tercet.ledger.row import Cancellation, Outcome, RefusalKey, Row, Targets, slo_of
from tercet.ledger.store import LedgerStore
from tercet.ledger.writer import Writer
from tercet.metrics.labels import TenantLabels
from tercet.retry import UNKNOWN_RETRY_SECONDS
from tercet.sections import CostsSettings, LedgerSettings

from .cancel import Cancels
from .metrics_counts import RequestCounts
from .sequence_end import Account
from .stages import StageClock, stage_times
from .stream import Stream
from .validate import GenerationRequest

# Cancels that are remembered without a ledger.
MAX_CANCELLATIONS = 1_000


class Books:
    """The rows of this gateway, `instance`, in a `ledger`, which comes with what the names of its journals begin with;
    without one nothing is kept. `classes` are the names of those there are: what else clients name is not kept. `clock`
    gives seconds since the epoch.

    At most `settings.max_waiting_rows` requests are running or wait to be written.
    """

    def __init__(
        self,
        ledger: tuple[LedgerStore, Path] | None,
        settings: LedgerSettings,
        instance: str,
        classes: Collection[str],
        clock: Callable[[], float] = time.time,
        *,
        prices: Prices | None = None,
        counts: RequestCounts | None = None,
    ) -> None:
        """`prices` are those of workers; None: the ledger's one. `counts` get what was, for Prometheus; None: no tenant
        is told apart."""
        self.counts = RequestCounts(TenantLabels((), 0)) if counts is None else counts
        self._writer = None
        if ledger is not None:
            self._writer = Writer(*ledger, instance, settings.retention_days, self._on_written)
        self._prices = prices or prices_of(CostsSettings(), settings)
        self._classes = classes
        self._clock = clock
        self._free = settings.max_waiting_rows
        self._next_number = 0
        self._second = 0
        # When the last row of each request was given to the writer that the database does not have, by number.
        self._unwritten: dict[int, float] = {}
        # Those that were cancelled lately, the newest last.
        self._cancelled: deque[tuple[Row, Cancellation]] = deque(maxlen=MAX_CANCELLATIONS)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Begins to write. Raises LedgerError."""
        self._loop = asyncio.get_running_loop()
        if self._writer is not None:
            await asyncio.to_thread(self._writer.start)

    async def stop(self) -> None:
        """Writes what is left."""
        if self._writer is not None:
            await asyncio.to_thread(self._writer.stop)

    @property
    def lost(self) -> bool:
        """Whether rows cannot be written."""
        return self._writer is not None and self._writer.lost

    @property
    def full(self) -> bool:
        """Whether no request can be taken in before a row is written."""
        return self._writer is not None and self._free <= 0

    @property
    def dead(self) -> bool:
        """Whether a bug has ended what writes."""
        return self._writer is not None and self._writer.dead

    def enter(self, request: GenerationRequest, request_id: str, tenant: str) -> Entry:
        """An entry for a new request. Whoever has it must `close` it. Raises LedgerLostError if too many rows wait."""
        if not self._free and self._writer is not None:
            raise LedgerLostError(
                "as many requests as the gateway has room for wait to be written to its ledger "
                "(ledger.max_waiting_rows)",
                retry_after_s=UNKNOWN_RETRY_SECONDS,
            )
        self._free -= 1
        self._next_number += 1
        return Entry(self, self._next_number, request, request_id, tenant, self._clock())

    def refuse(self, tenant: str, traffic_class: str, model: str, reason: str, request_id: str) -> None:
        """Counts a request for which nothing was done."""
        self.counts.refused(tenant, model, self.class_known(traffic_class), reason)
        if self._writer is None:
            return
        # A clock that is set back does not open a second again.
        self._second = max(self._second, int(self._clock()))
        key = RefusalKey(self._second, tenant, self.class_known(traffic_class), model, reason)
        self._writer.refuse(key, request_id)

    def class_known(self, traffic_class: str) -> str:
        """The class, or nothing if there is none of that name: anybody can make up names."""
        return traffic_class if traffic_class in self._classes else ""

    def cost_of(self, model: str, account: Account) -> float:
        """What the time of steps costs that a request of a model has got."""
        return self._prices.cost_of(model, account.gpu_s, account.cpu_s)

    def open(self, row: Row) -> None:
        """Writes an open row. It is in the ledger, now or later, whatever becomes of this process."""
        if self._writer is not None:
            self._writer.put(row)

    def close(self, row: Row, stream: Stream | None = None) -> None:
        """Writes the last row of a request, whose place is free then. Without a stream it never was submitted."""
        self.counts.closed(row, stream)
        self._cancelled.extend((row, cancellation) for cancellation in row.cancellations)
        if self._writer is None:
            self.leave()
        else:
            self._unwritten[row.number] = time.monotonic()
            self._writer.put(row)

    @property
    def num_unwritten(self) -> int:
        """Rows of ended requests that the database does not have."""
        return len(self._unwritten)

    @property
    def oldest_unwritten_s(self) -> float:
        """For how long the oldest of them waits, in seconds; 0 without any."""
        return time.monotonic() - next(iter(self._unwritten.values())) if self._unwritten else 0.0

    def cancellations(self) -> Iterator[tuple[Row, Cancellation]]:
        """The latest, of requests that have ended, the newest first."""
        return reversed(self._cancelled)

    def leave(self, requests: int = 1) -> None:
        """So many requests have their place no more."""
        self._free += requests

    def _settle(self, numbers: Sequence[int]) -> None:
        """The last rows of these are in the database."""
        for number in numbers:
            self._unwritten.pop(number, None)
        self.leave(len(numbers))

    def _on_written(self, rows: Sequence[Row]) -> None:
        closed = [row.number for row in rows if row.outcome is not Outcome.OPEN]
        if not closed:
            return
        assert self._loop is not None
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle, closed)


@dataclass(frozen=True, slots=True)
class Ending:
    """What the gateway knows of a request whose client has nothing more to say. Times are seconds on one clock."""

    arrived_at: float
    ended_at: float
    prompt_tokens: int
    # Handed to the client's connection.
    delivered_tokens: int
    cancels: Cancels
    stages: StageClock


# Of what the mesh has never heard of.
_NO_ACCOUNT = Account(0, 0, 0, 0.0)


class Entry:
    """One request in the books, opened when the scheduler has accepted it, and closed once: when neither its client nor
    the mesh has more to say of it."""

    __slots__ = (
        "_arrived_at", "_books", "_number", "_prompt_tokens", "_request", "_request_id", "_targets", "_tenant",
    )  # fmt: skip

    def __init__(
        self, books: Books, number: int, request: GenerationRequest, request_id: str, tenant: str, arrived_at: float
    ) -> None:
        self._books = books
        self._number = number
        self._request = request
        self._request_id = request_id
        self._tenant = tenant
        self._arrived_at = arrived_at
        self._targets = Targets(books.class_known(request.traffic_class))
        self._prompt_tokens = 0

    def open(self, prompt_tokens: int, targets: Targets) -> None:
        """The scheduler has accepted it, as one of a class that promises this."""
        self._prompt_tokens = prompt_tokens
        self._targets = targets
        self._books.open(self._row(Outcome.OPEN, ""))

    def close(
        self,
        outcome: Outcome,
        reason: str,
        stream: Stream | None,
        ending: Ending,
        tell: Callable[[Row], None] = lambda _: None,
    ) -> None:
        """Its client has nothing more to say. It is written once the mesh has said what it cost; at once if `stream` is
        None: it never was submitted. `tell` gets what is written, or, of a refusal, would be."""
        self._prompt_tokens = ending.prompt_tokens
        if outcome is Outcome.REFUSED and not any(ending.cancels):
            self._books.refuse(
                self._tenant, self._request.traffic_class, self._request.model.name, reason, self._request_id
            )
            self._books.leave()
            tell(self._closed_row(outcome, reason, ending, None))
            return

        def close() -> None:
            row = self._closed_row(outcome, reason, ending, stream)
            self._books.close(row, stream)
            tell(row)

        if stream is None:
            close()
        else:
            stream.when_accounted(close)

    def _closed_row(self, outcome: Outcome, reason: str, ending: Ending, stream: Stream | None) -> Row:
        account = _NO_ACCOUNT if stream is None else stream.account
        ttft_s = tpot_s = largest_gap_s = None
        # Tokens that the mesh has not accounted for have been generated all the same.
        generated = 0 if account is None else account.generated_tokens
        if stream is not None:
            generated = max(generated, stream.num_tokens)
            tpot_s, largest_gap_s = stream.tpot_s, stream.largest_gap_s
            if stream.first_token_at is not None:
                ttft_s = stream.first_token_at - ending.arrived_at
        return self._row(
            outcome,
            reason,
            cached_tokens=None if account is None else account.cached_tokens,
            generated_tokens=generated,
            delivered_tokens=ending.delivered_tokens,
            wasted_tokens=generated - ending.delivered_tokens,
            queue_s=None if account is None else account.queue_s,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            largest_gap_s=largest_gap_s,
            total_s=ending.ended_at - ending.arrived_at,
            gpu_s=None if account is None else account.gpu_s,
            cpu_s=None if account is None else account.cpu_s,
            cost=None if account is None else self._books.cost_of(self._request.model.name, account),
            slo=slo_of(outcome, self._targets, ttft_s, tpot_s),
            takeovers=None if stream is None else stream.takeovers,
            stages=stage_times(
                ending.stages,
                ending.ended_at,
                None if account is None else account.queue_s,
                None if stream is None else stream.token_times,
            ),
            cancellations=self._cancellations(ending, generated - ending.delivered_tokens),
        )

    def _cancellations(self, ending: Ending, wasted_tokens: int) -> tuple[Cancellation, ...]:
        return tuple(
            Cancellation(
                output_index=cancel.output_index,
                origin=cancel.origin.value,
                cancelled_at=self._arrived_at + cancel.seen_at - ending.arrived_at,
                states=() if cancel.trail is None else cancel.trail.states,
                release_s=None if cancel.trail is None else cancel.trail.release_s,
                freed_s=None if cancel.trail is None else cancel.trail.freed_s,
                done_s=None if cancel.done_at is None else cancel.done_at - cancel.seen_at,
                blocks_freed=cancel.blocks_freed,
                # Of one output nobody counts them.
                wasted_tokens=wasted_tokens if cancel.output_index is None else None,
                wasted_gpu_s=None if cancel.trail is None else cancel.trail.late_gpu_s,
            )
            for cancel in ending.cancels
        )

    def _row(self, outcome: Outcome, reason: str, **facts: Any) -> Row:
        return Row(
            number=self._number,
            request_id=self._request_id,
            tenant=self._tenant,
            traffic_class=self._targets.traffic_class,
            model=self._request.model.name,
            revision=self._request.model.revision,
            outputs=self._request.n,
            arrived_at=self._arrived_at,
            outcome=outcome,
            reason=reason,
            prompt_tokens=self._prompt_tokens,
            **facts,
        )
