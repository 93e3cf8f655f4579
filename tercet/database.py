"""A database: where it is, how a transaction begins, and what its errors are called.

Knows no tables. What SQLite needs and others do not stands here alone.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import exc

from tercet.errors import ConfigError

# How long a writer waits for others, in seconds. Readers of a WAL wait for nobody, those of a file without for a write.
_BUSY_S = 5.0
# How long it takes at most until a file that is being made has something in it, and how often it is looked for.
_MAKING_S, _MAKING_LOOKS = 1.0, 20
# What makes a driver give up a server that cannot be reached, or that is gone in the middle.
_TIMEOUTS: dict[str, dict[str, int]] = {
    "psycopg": {"connect_timeout": 5, "tcp_user_timeout": 5_000},
    "psycopg2": {"connect_timeout": 5, "tcp_user_timeout": 5_000},
    "pymysql": {"connect_timeout": 5, "read_timeout": 10, "write_timeout": 10},
}
# Parameters of a URL that are shown; any other may be a password, which drivers take there, too.
_SHOWN = frozenset(
    ["application_name", "charset", "connect_timeout", "database", "dbname", "host", "hostaddr", "options", "port",
     "service", "sslmode", "sslrootcert", "target_session_attrs", "unix_socket", "user"]
)  # fmt: skip


class Database:
    """A SQLite file or whatever a SQLAlchemy URL names. Nothing is opened before the first transaction.

    Every method, and the constructor, may raise what `fault` makes of a problem. `made_by` says what makes a file that
    is not there. With `wal` what is written goes to a journal beside a file, where much is written at a time; without
    it the file is all there is of it between two writes, to be copied and put back by anybody.
    """

    _reader: sa.Engine
    _writer: sa.Engine

    def __init__(self, where: str, fault: Callable[[str], ConfigError], made_by: str, *, wal: bool = True) -> None:
        self._fault = fault
        self._made_by = made_by
        self._wal = wal
        url = self._url(where)
        # That of SQLite; None for a server.
        self.file = Path(url.database or "").absolute() if url.get_backend_name() == "sqlite" else None
        # Such as "sqlite" or "postgresql".
        self.kind = url.get_backend_name()
        self.name = str(self.file) if self.file else _shown(url)
        # Who the file was when it was opened: what is behind an open file that was replaced nobody else sees.
        self._opened: tuple[int, int] | None = None
        with self._typed():
            if self.file is None:
                self._engine = sa.create_engine(url, pool_pre_ping=True, connect_args=_timeouts(url))
                self._reader = self._engine.execution_options(isolation_level="REPEATABLE READ")
                self._writer = self._engine
                return
            # The mode keeps SQLite from making an empty file where none is.
            address = sa.URL.create(
                "sqlite", database=f"file:{quote(str(self.file))}", query={"mode": "rw", "uri": "true"}
            )
            self._engine = sa.create_engine(address, connect_args={"timeout": _BUSY_S})
            self._reader = self._engine
            self._writer = self._engine.execution_options(begin="BEGIN IMMEDIATE")
            sa.event.listen(self._engine, "connect", _on_connect)
            sa.event.listen(self._engine, "begin", _on_begin)

    def create(self, fill: Callable[[sa.Connection], None]) -> None:
        """Makes the file, unless it is there, and lets `fill` make what is missing in it."""
        with self._typed():
            if self.file is not None:
                # For its owner alone: whoever can read it can find others' prefixes. Its journal takes after it.
                os.close(os.open(self.file, os.O_RDWR | os.O_CREAT, 0o600))
            with self._current(self._writer, may_be_empty=True).begin() as connection:
                fill(connection)
            if self.file is not None and self._wal:
                with contextlib.closing(self._engine.raw_connection()) as raw:
                    # Outside of a transaction, as SQLite wants it; the file remembers.
                    raw.cursor().execute("PRAGMA journal_mode=WAL")

    def is_empty(self) -> bool:
        """Whether there is a file with nothing in it. One that somebody is making is waited for."""
        if self.file is None:
            return False
        for _ in range(_MAKING_LOOKS):
            with contextlib.suppress(OSError):
                if not self.file.stat().st_size:
                    time.sleep(_MAKING_S / _MAKING_LOOKS)
                    continue
            return False
        return True

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A transaction that sees one moment."""
        with self._typed(), self._current(self._reader).begin() as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction that changes all or nothing. SQLite has one at a time; on others the first statement has to
        lock what others change, too."""
        with self._typed(), self._current(self._writer).begin() as connection:
            yield connection

    def check(self, limit_s: float | None = None) -> bool:
        """Looks whether the file is whole, with new connections: those that have been open for long go by what they
        have read before. Returns False if `limit_s` was over before all of it was looked at. Servers look after their
        files themselves."""
        if self.file is None:
            return True
        self.close()
        with self.read() as connection, _interrupted(connection, limit_s) as over:
            try:
                found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
            except exc.OperationalError:
                if over.is_set():
                    return False
                raise
        if found != "ok":
            raise self._fault(f"{self.name} is damaged: {' '.join(str(found).split())}")
        return True

    def close(self) -> None:
        """Gives the connections back. The next transaction opens new ones."""
        self._engine.dispose()

    def _current(self, engine: sa.Engine, *, may_be_empty: bool = False) -> sa.Engine:
        """`engine`, whose connections are to the file that is there now."""
        if self.file is not None:
            try:
                found = self.file.stat()
            except FileNotFoundError:
                raise self._fault(f"{self.name} is not there; {self._made_by} makes it") from None
            if not found.st_size and not may_be_empty:
                raise self._fault(f"{self.name} is an empty file")
            if self._opened != (found.st_dev, found.st_ino):
                self._engine.dispose()
                self._opened = (found.st_dev, found.st_ino)
        return engine

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except (exc.NoSuchModuleError, ImportError) as error:
            raise self._fault(f"{self.name}: its driver is not installed: {error}") from error
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            # The driver's own words; SQLAlchemy's would add the statement and its values.
            cause = getattr(error, "orig", None) or error
            raise self._fault(f"{self.name}: {' '.join(str(cause).split())}") from None
        except OSError as error:
            raise self._fault(f"{self.name}: {error.strerror}") from error

    def _url(self, where: str) -> sa.URL:
        """What `where` means: with :// in it a URL, else a path."""
        if "://" not in where:
            return sa.URL.create("sqlite", database=where)
        try:
            url = sa.make_url(where)
        except (exc.ArgumentError, ValueError):
            # Not repeated: it may hold a password.
            raise self._fault(
                "is neither a path nor a SQLAlchemy URL such as sqlite:////var/lib/tercet/tercet.db"
            ) from None
        if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
            raise self._fault("must be a file: several processes meet in it")
        return url


@contextlib.contextmanager
def _interrupted(connection: sa.Connection, limit_s: float | None) -> Iterator[threading.Event]:
    """What runs on SQLite's `connection` is interrupted when `limit_s` is over, and the event set."""
    over = threading.Event()
    if limit_s is None:
        yield over
        return
    driver: Any = connection.connection.dbapi_connection

    def interrupt() -> None:
        over.set()
        driver.interrupt()

    timer = threading.Timer(limit_s, interrupt)
    timer.start()
    try:
        yield over
    finally:
        timer.cancel()
        # So that it interrupts nothing that comes later.
        timer.join()


def _shown(url: sa.URL) -> str:
    """A URL without its passwords, the same one for every password."""
    query = {name: value if name in _SHOWN else "..." for name, value in url.query.items()}
    return url.set(query=query).render_as_string(hide_password=True)


def _timeouts(url: sa.URL) -> dict[str, int]:
    """Those of the URL's driver that it does not set itself."""
    timeouts = _TIMEOUTS.get(url.get_driver_name(), {})
    return {name: value for name, value in timeouts.items() if name not in url.query}


def _on_connect(connection: Any, _: Any) -> None:
    # Python's driver would begin transactions when it sees fit; a read of three tables needs one.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys=ON")
    # A key that was revoked stays so, and a request that was written is not lost, whatever happens to the host.
    connection.execute("PRAGMA synchronous=FULL")


def _on_begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))
