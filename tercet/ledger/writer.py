"""A thread that writes the ledger in batches, so that nobody who serves waits for a database.

Rows wait in memory until they are written: the latest of each number. Whoever puts rows bounds how many numbers wait;
refusals are counted here, and bounded here. Knows no gateway.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from tercet.errors import LedgerError

from .row import RefusalKey, Refusals, Row

log = structlog.get_logger()

# Between two words to the other gateways of the ledger that this one lives.
BEAT_S = 3.0
# Between two transactions: what comes meanwhile shares the next one.
GAP_S = 0.01
# Rows of one transaction.
MAX_ROWS = 2_000
# How long refusals wait to be written: nobody waits for them.
TELL_S = 1.0
# Between two attempts while the database fails.
RETRY_S = 0.5
# Between two looks at what is too old, once nothing is.
FORGET_EVERY_S = 3_600.0
# Kinds of refusals that wait to be written, or may still grow; beyond, refusals are only told in the log.
MAX_REFUSAL_KEYS = 10_000
# At the end it is tried for so long to write what is left.
LAST_S = 5.0


class Database(Protocol):
    """What the writer needs of a Ledger."""

    def create(self) -> None: ...
    def write(self, instance: str, rows: Sequence[Row], refused: Sequence[Refusals]) -> None: ...
    def beat(self, instance: str) -> int: ...
    def end(self, instance: str) -> int: ...
    def forget(self, days: float) -> int: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class _Counted:
    """Refusals of one key; `written` of them are in the database."""

    request_id: str
    count: int = 0
    written: int = 0


class Writer:
    """Writes for one gateway, `instance`. Days of 0 keep rows for ever. `on_written` gets, in the writer's thread, what
    has been written for good. What it cannot write it keeps, and tries again."""

    def __init__(
        self,
        ledger: Database,
        instance: str,
        retention_days: float,
        on_written: Callable[[Sequence[Row]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._instance = instance
        self._retention_days = retention_days
        self._on_written = on_written
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: dict[int, Row] = {}
        # Those that the database is being given.
        self._in_hand = 0
        self._refusals: dict[RefusalKey, _Counted] = {}
        self._uncounted = 0
        self._work = threading.Event()
        self._stopping = threading.Event()
        # The last attempt failed.
        self._lost = False
        self._next_beat = self._next_look = clock()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    def start(self) -> None:
        """Begins to write. Raises LedgerError if the database cannot be made or written."""
        self._ledger.create()
        self._beat()
        self._thread.start()

    def put(self, row: Row) -> None:
        """Writes a row soon. From any thread, as `refuse`."""
        with self._lock:
            self._rows[row.number] = row
        self._work.set()

    def refuse(self, key: RefusalKey, request_id: str) -> None:
        """Counts a refusal, to be written TELL_S later. Seconds never go back."""
        with self._lock:
            counted = self._refusals.get(key)
            if counted is None:
                if len(self._refusals) >= MAX_REFUSAL_KEYS:
                    self._uncounted += 1
                    return
                counted = self._refusals[key] = _Counted(request_id)
            counted.count += 1

    @property
    def lost(self) -> bool:
        """Whether the last attempt to write has failed."""
        return self._lost

    @property
    def dead(self) -> bool:
        """Whether the thread has ended though nobody has stopped it."""
        return self._thread.ident is not None and not self._thread.is_alive() and not self._stopping.is_set()

    def stop(self) -> int:
        """Writes what is left, for LAST_S at most, and ends. Returns how many rows could not be written."""
        self._stopping.set()
        self._work.set()
        self._thread.join(LAST_S + 1.0)
        with self._lock:
            left = len(self._rows) + self._in_hand
        if left:
            log.error("ledger_rows_lost", rows=left)
        if not self._thread.is_alive():
            self._ledger.close()
        return left

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._work.wait(min(TELL_S, max(0.0, self._next_beat - self._clock())))
            # Before it is looked what there is: a row that comes later sets it again.
            self._work.clear()
            written = self._write()
            if written:
                self._forget()
            self._stopping.wait(GAP_S if written else RETRY_S)
        give_up_at = self._clock() + LAST_S
        while not self._write() and self._clock() < give_up_at:
            time.sleep(RETRY_S)
        self._end()

    def _write(self) -> bool:
        """Writes what waits; whether that went well."""
        with self._lock:
            rows, self._rows = self._rows, {}
            self._in_hand = len(rows)
            refused = [
                Refusals(key, counted.count, counted.request_id)
                for key, counted in self._refusals.items()
                if counted.count > counted.written
            ]
            uncounted, self._uncounted = self._uncounted, 0
        if uncounted:
            log.error("ledger_refusals_uncounted", refusals=uncounted)
        done = 0
        waiting = list(rows.values())
        try:
            if self._lost:
                # Perhaps the file is gone; then there is a new one, which knows nobody.
                self._ledger.create()
                self._beat()
            while done < len(waiting) or refused:
                batch = waiting[done : done + MAX_ROWS]
                self._ledger.write(self._instance, batch, refused)
                done += len(batch)
                self._settle(refused, len(batch))
                refused = []
                if batch:
                    self._on_written(batch)
            if self._clock() >= self._next_beat:
                self._beat()
        except Exception as error:
            self._keep(waiting[done:], error)
            return False
        if self._lost:
            log.info("ledger_found", rows=len(waiting))
            self._lost = False
        return True

    def _settle(self, refused: Sequence[Refusals], rows: int) -> None:
        """These, and so many rows, have been written. Refusals of seconds that are over are done with."""
        with self._lock:
            self._in_hand -= rows
            for each in refused:
                self._refusals[each.key].written = each.count
            newest = max((key.second for key in self._refusals), default=0)
            for key, counted in list(self._refusals.items()):
                if key.second < newest and counted.count == counted.written:
                    del self._refusals[key]

    def _keep(self, rows: Sequence[Row], error: Exception) -> None:
        """Puts back what could not be written, behind what has come since."""
        with self._lock:
            self._rows = {**{row.number: row for row in rows}, **self._rows}
            self._in_hand = 0
            waiting = len(self._rows)
        if not self._lost:
            unexpected = None if isinstance(error, LedgerError) else error
            log.error("ledger_lost", problem=str(error), rows=waiting, exc_info=unexpected)
        self._lost = True

    def _beat(self) -> None:
        closed = self._ledger.beat(self._instance)
        self._next_beat = self._clock() + BEAT_S
        if closed:
            log.warning("ledger_rows_closed", rows=closed)

    def _forget(self) -> None:
        """Deletes some of what is too old: a piece after each batch, so that none waits for long."""
        if not self._retention_days or self._clock() < self._next_look:
            return
        try:
            deleted = self._ledger.forget(self._retention_days)
        except Exception as error:
            log.error("ledger_cannot_forget", problem=str(error))
            deleted = 0
        if not deleted:
            self._next_look = self._clock() + FORGET_EVERY_S

    def _end(self) -> None:
        try:
            closed = self._ledger.end(self._instance)
        except Exception as error:
            log.error("ledger_not_ended", problem=str(error))
        else:
            if closed:
                log.warning("ledger_rows_closed", rows=closed)
