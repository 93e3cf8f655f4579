"""A thread that writes the ledger in batches, so that nobody who serves waits for a database.

Rows wait in memory until they are written, the latest of each number, and in the journal, where they outlive this
process. Whoever puts rows bounds how many numbers wait; refusals are counted here, and bounded here. Knows no gateway.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from tercet.errors import LedgerError

from .adopter import MAX_ROWS, Adopter
from .journal import Journal
from .record import refusals_to_line, row_to_line
from .refusal_tally import RefusalTally
from .row import RefusalKey, Refusals, Row
from .store import LedgerStore

log = structlog.get_logger()

# Between two words to the other gateways of the ledger that this one lives.
BEAT_S = 3.0
# Between two transactions: what comes meanwhile shares the next one.
GAP_S = 0.01
# How long refusals wait to be written: nobody waits for them.
TELL_S = 1.0
# Between two attempts while the database fails.
RETRY_S = 0.5
# Between two looks at what is too old, once nothing is.
FORGET_EVERY_S = 3_600.0
# A transaction that takes longer is told of as if it had failed.
SLOW_S = 5.0
# At the start it is looked for so long whether the database is damaged.
CHECK_S = 2.0
# At the end it is tried for so long to write what is left.
LAST_S = 5.0


class Writer:
    """Writes for one gateway, `instance`, with a journal whose files begin with `journals`, and what others have left
    in theirs. Days of 0 keep rows for ever. `on_written` gets, in the writer's thread, what has been written for good.
    What it cannot write it keeps, and tries again."""

    def __init__(
        self,
        ledger: LedgerStore,
        journals: Path,
        instance: str,
        retention_days: float,
        on_written: Callable[[Sequence[Row]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._adopter = Adopter(journals, ledger, instance)
        self._journal = Journal(journals, instance)
        self._instance = instance
        self._retention_days = retention_days
        self._on_written = on_written
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: dict[int, Row] = {}
        # Those that the database is being given.
        self._in_hand: dict[int, Row] = {}
        # Numbers of those that the journal had no room for.
        self._unjournaled: set[int] = set()
        self._refusals = RefusalTally()
        self._work = threading.Event()
        self._stopping = threading.Event()
        # The last attempt failed; the last one to append to the journal did.
        self._lost = self._journal_lost = False
        # When the attempt began that is going on.
        self._began_at: float | None = None
        self._next_beat = self._next_look = self._next_adoption = clock()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    def start(self) -> None:
        """Begins to write. Raises LedgerError if the database or the journal cannot be made or written, or it is
        damaged."""
        self._ledger.create()
        if not self._ledger.check(CHECK_S):
            log.info("ledger_not_looked_through", limit_s=CHECK_S)
        self._journal.open()
        try:
            self._beat()
        except BaseException:
            self._journal.close(remove=True)
            raise
        # What others have left is there soon.
        self._work.set()
        self._thread.start()

    def put(self, row: Row) -> None:
        """Writes a row soon; it is there then also if this process is killed the next moment. From any thread, as
        `refuse`."""
        line = row_to_line(row)
        with self._lock:
            self._rows[row.number] = row
            if self._append(line):
                self._unjournaled.discard(row.number)
            else:
                self._unjournaled.add(row.number)
        self._work.set()

    def refuse(self, key: RefusalKey, request_id: str) -> None:
        """Counts a refusal, to be written TELL_S later; the journal has those of seconds that are over."""
        with self._lock:
            if key.second > self._refusals.second:
                self._journal_refusals()
            self._refusals.count(key, request_id)

    @property
    def lost(self) -> bool:
        """Whether the last attempt to write has failed, to the database or to the journal, or does not come to an
        end."""
        began_at = self._began_at
        return self._lost or self._journal_lost or (began_at is not None and self._clock() - began_at > SLOW_S)

    @property
    def dead(self) -> bool:
        """Whether the thread has ended though nobody has stopped it."""
        return self._thread.ident is not None and not self._thread.is_alive() and not self._stopping.is_set()

    def stop(self) -> int:
        """Writes what is left, for LAST_S at most, and ends. Returns how many rows the database does not have."""
        self._stopping.set()
        self._work.set()
        self._thread.join(LAST_S + 1.0)
        with self._lock:
            left = {**self._in_hand, **self._rows}
            again = [row for number, row in left.items() if number in self._unjournaled]
            lost = [row for row in again if not self._append(row_to_line(row))]
            self._journal_refusals()
            written = not left and not self._refusals.unwritten()
            self._journal.close(remove=written)
        if lost:
            log.error("ledger_rows_lost", rows=len(lost))
        if not written:
            log.warning("ledger_left_to_journal", rows=len(left) - len(lost))
        if not self._thread.is_alive():
            self._ledger.close()
        return len(left)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._work.wait(min(TELL_S, max(0.0, self._next_beat - self._clock())))
            # Before it is looked what there is: a row that comes later sets it again.
            self._work.clear()
            self._began_at = self._clock()
            written = self._write()
            self._began_at = None
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
            self._journal.turn()
            self._in_hand = dict(rows)
            refused = self._refusals.unwritten()
            uncounted, self._refusals.uncounted = self._refusals.uncounted, 0
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
                self._settle(refused, batch)
                refused = []
                if batch:
                    self._on_written(batch)
            self._journal.settle()
            if self._clock() >= self._next_beat:
                self._beat()
            if self._clock() >= self._next_adoption:
                self._find_journal()
                self._adopter.look()
                self._next_adoption = self._clock() + BEAT_S
        except Exception as error:
            self._keep(waiting[done:], error)
            return False
        if self._lost:
            log.info("ledger_found", rows=len(waiting))
            self._lost = False
        return True

    def _settle(self, refused: Sequence[Refusals], rows: Sequence[Row]) -> None:
        """These have been written. Refusals of seconds that are over are done with."""
        with self._lock:
            for row in rows:
                del self._in_hand[row.number]
                if row.number not in self._rows:
                    self._unjournaled.discard(row.number)
            self._refusals.settle(refused)

    def _keep(self, rows: Sequence[Row], error: Exception) -> None:
        """Puts back what could not be written, behind what has come since."""
        with self._lock:
            self._rows = {**{row.number: row for row in rows}, **self._rows}
            self._in_hand = {}
            waiting = len(self._rows)
        if not self._lost:
            unexpected = None if isinstance(error, LedgerError) else error
            log.error("ledger_lost", problem=str(error), rows=waiting, exc_info=unexpected)
        self._lost = True

    def _append(self, line: bytes) -> bool:
        """Whether the journal had room for it."""
        try:
            self._journal.append(line)
        except OSError as error:
            self._miss_journal(error)
            return False
        if self._journal_lost:
            log.info("ledger_journal_found")
            self._journal_lost = False
        return True

    def _journal_refusals(self) -> None:
        """Those that nobody has written yet; with the lock."""
        self._refusals.journal(lambda refused: self._append(refusals_to_line(refused)))

    def _find_journal(self) -> None:
        """Makes it anew, with all that waits, if somebody has deleted it."""
        with self._lock:
            if self._stopping.is_set() or self._journal.found:
                return
            self._journal.close(remove=True)
            try:
                self._journal.open()
            except LedgerError as error:
                self._miss_journal(error)
                return
            waiting = {**self._in_hand, **self._rows}
            for row in waiting.values():
                self._append(row_to_line(row))
        log.warning("ledger_journal_made_anew", rows=len(waiting))

    def _miss_journal(self, error: Exception) -> None:
        if not self._journal_lost:
            log.error("ledger_journal_lost", problem=str(error))
        self._journal_lost = True

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
