"""Brings into the database what gateways have left in their journals that are no more."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import structlog

from .journal import LeftJournal, find_journals, take_left
from .record import from_line
from .row import Outcome, RefusalKey, Refusals, Row
from .store import RowStore

log = structlog.get_logger()

# Rows of one transaction.
MAX_ROWS = 2_000


@dataclass(frozen=True, slots=True)
class Adopted:
    """Rows that a gateway left, of which `closed` were open; `unreadable` lines were not whole. `problem`: why its
    journal cannot be had."""

    instance: str
    rows: int = 0
    closed: int = 0
    unreadable: int = 0
    problem: str = ""


def adopt(prefix: Path, ledger: RowStore, own: str = "") -> list[Adopted]:
    """Each journal of the prefix whose process is no more, never that of the instance `own`: what was written already
    is written again, which changes nothing; what is open then is closed. Raises LedgerError; what is not in
    the database stays."""
    adopted = []
    try:
        instances = find_journals(prefix)
    except OSError as error:
        return [Adopted("", problem=str(error))]
    for instance in instances:
        if instance == own:
            continue
        try:
            with take_left(prefix, instance) as left:
                if left is not None:
                    adopted.append(_adopt(left, ledger))
        except OSError as error:
            adopted.append(Adopted(instance, problem=str(error)))
    return adopted


class Adopter:
    """Adopts again and again for the gateway `own`, and tells the log; of what cannot be had once."""

    def __init__(self, prefix: Path, ledger: RowStore, own: str = "") -> None:
        self._prefix = prefix
        self._ledger = ledger
        self._own = own
        # By instance.
        self._problems: dict[str, str] = {}

    def look(self) -> None:
        """Raises LedgerError."""
        for found in adopt(self._prefix, self._ledger, self._own):
            if found.problem:
                if self._problems.get(found.instance) != found.problem:
                    log.error("ledger_journal_unreadable", instance=found.instance, problem=found.problem)
                self._problems[found.instance] = found.problem
                continue
            log.info("ledger_journal_adopted", instance=found.instance, rows=found.rows)
            if found.unreadable:
                log.warning("ledger_journal_torn", instance=found.instance, lines=found.unreadable)
            if found.closed:
                log.warning("ledger_rows_closed", rows=found.closed)


def _adopt(left: LeftJournal, ledger: RowStore) -> Adopted:
    rows: dict[int, Row] = {}
    refused: dict[RefusalKey, Refusals] = {}
    unreadable = 0
    for line in left.lines:
        record = from_line(line)
        if isinstance(record, Row):
            # The files do not say which came first.
            if record.outcome is not Outcome.OPEN or record.number not in rows:
                rows[record.number] = record
        elif isinstance(record, Refusals):
            before = refused.get(record.key)
            if before is None or before.count < record.count:
                refused[record.key] = record
        else:
            unreadable += 1
    kept, told = list(rows.values()), list(refused.values())
    for start in range(0, max(len(kept), len(told)), MAX_ROWS):
        part = slice(start, start + MAX_ROWS)
        ledger.write(left.instance, kept[part], told[part])
    closed = ledger.end(left.instance)
    left.remove()
    return Adopted(left.instance, len(kept), closed, unreadable)
