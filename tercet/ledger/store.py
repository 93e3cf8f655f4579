"""What those who write a ledger need of it: ledger.Ledger, or a test's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .row import Refusals, Row


class RowStore(Protocol):
    """Takes rows, and closes what a gateway has left open. All may raise LedgerError."""

    def write(self, instance: str, rows: Sequence[Row], refused: Sequence[Refusals]) -> None: ...
    def end(self, instance: str) -> int: ...


class LedgerStore(RowStore, Protocol):
    """All that a gateway's writer asks for."""

    def create(self) -> None: ...
    def check(self, limit_s: float) -> bool: ...
    def beat(self, instance: str) -> int: ...
    def forget(self, days: float) -> int: ...
    def close(self) -> None: ...
