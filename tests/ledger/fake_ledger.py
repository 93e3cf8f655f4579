"""A ledger in memory, and what tests of its writer say and wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from tercet.ledger.row import RefusalKey, Refusals, Row


class FakeLedger:
    """Keeps rows in memory. `fail` is raised by whatever writes; `gate`, while it is cleared, holds it up."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.refusals: dict[RefusalKey, int] = {}
        self.batches: list[int] = []
        self.created = self.beats = self.ends = 0
        self.checks: list[float] = []
        # Whether a check gets through all of it.
        self.whole = True
        self.old = 0
        self.forgets: list[float] = []
        self.fail: Exception | None = None
        # Raised after the rows are there: nobody knows whether they are.
        self.fail_late: Exception | None = None
        self.held_up = False
        self.gate = threading.Event()
        self.gate.set()
        self.closed = False

    def create(self) -> None:
        self._meet()
        self.created += 1

    def write(self, instance: str, rows: Sequence[Row], refused: Sequence[Refusals]) -> None:
        self._meet()
        self.batches.append(len(rows))
        self.rows.update({each.number: each for each in rows})
        self.refusals.update({each.key: each.count for each in refused})
        if self.fail_late is not None:
            error, self.fail_late = self.fail_late, None
            raise error

    def check(self, limit_s: float) -> bool:
        self.checks.append(limit_s)
        return self.whole

    def beat(self, instance: str) -> int:
        self._meet()
        self.beats += 1
        return 0

    def end(self, instance: str) -> int:
        self._meet()
        self.ends += 1
        return 0

    def forget(self, days: float) -> int:
        self.forgets.append(days)
        deleted = min(self.old, 10)
        self.old -= deleted
        return deleted

    def close(self) -> None:
        self.closed = True

    def _meet(self) -> None:
        self.held_up = not self.gate.is_set()
        self.gate.wait(60)
        self.held_up = False
        if self.fail is not None:
            raise self.fail


def until(check: Callable[[], bool]) -> None:
    """Waits until a check holds: the thread says nothing."""
    while not check():
        time.sleep(0.002)


def key(second: int = 5, reason: str = "QUEUE_FULL") -> RefusalKey:
    return RefusalKey(second, "alice", "rag", "small", reason)
