"""Databases of a ledger that can be broken while gateways write into them: an SQLite file, a PostgreSQL server."""

from __future__ import annotations

import contextlib
import importlib.util
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from bench.postgres_server import PostgresServer, find_tool
from bench.slow_disk import SlowDisk

# Of each write to a slow disk, in milliseconds: a commit is several.
DELAY_MS = 100


class FaultDatabase(Protocol):
    """`kind` is the name in the matrix, `where` the ledger's setting, `environment` that of its gateways."""

    kind: str
    where: str
    environment: Mapping[str, str]

    def broken(self, fault: str) -> contextlib.AbstractContextManager[None]:
        """It is, in this way, for as long as the scope lasts."""

    def close(self) -> None:
        """Ends it for good."""


class FileDatabase:
    """On a disk that can be slow. Faults: "slow disk", and "lock": another process writes and does not end."""

    kind = "sqlite"

    def __init__(self, folder: Path) -> None:
        """Raises RuntimeError without a C compiler."""
        self.where = str(folder / "ledger.db")
        self._disk = SlowDisk(folder, "ledger.db")
        self.environment = self._disk.environment

    @contextlib.contextmanager
    def broken(self, fault: str) -> Iterator[None]:
        if fault == "slow disk":
            self._disk.set_delay(DELAY_MS)
            try:
                yield
            finally:
                self._disk.set_delay(0)
            return
        with contextlib.closing(sqlite3.connect(self.where, isolation_level=None, timeout=30)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")

    def close(self) -> None:
        """There is nothing to end."""


class ServerDatabase:
    """Faults are "kill", "stop" and "hang", of all its processes; then it is started again, or goes on."""

    kind = "postgresql"

    @staticmethod
    def missing() -> str:
        """What it needs and is not there; empty: nothing."""
        missing = [name for name in ("initdb", "postgres") if find_tool(name) is None]
        missing += [name for name in ("psycopg",) if importlib.util.find_spec(name) is None]
        return ", ".join(missing)

    def __init__(self, folder: Path) -> None:
        self._server = PostgresServer()
        self.where = self._server.make_database()
        # Journals are of the host, and not of whoever runs this.
        self.environment: Mapping[str, str] = {"XDG_STATE_HOME": str(folder / "state")}

    @contextlib.contextmanager
    def broken(self, fault: str) -> Iterator[None]:
        if fault == "hang":
            self._server.hang()
            try:
                yield
            finally:
                self._server.go_on()
            return
        if fault == "kill":
            self._server.kill()
        else:
            self._server.end()
        try:
            yield
        finally:
            self._server.start()

    def close(self) -> None:
        self._server.stop()
