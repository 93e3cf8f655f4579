"""A PostgreSQL server of one's own, on a socket in a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

USER = "tercet"
# Where Debian puts what is in no PATH.
_FOLDERS = "/usr/lib/postgresql"


def find_tool(name: str) -> str | None:
    """The path of one of PostgreSQL's programs; None if it is not installed."""
    found = shutil.which(name)
    return found or max(map(str, Path(_FOLDERS).glob(f"*/bin/{name}")), default=None)


def _owner() -> dict[str, Any]:
    """PostgreSQL does not run as root: whose its processes are then."""
    if os.geteuid() != 0:
        return {}
    names = {each.pw_name for each in pwd.getpwall()}
    entry = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return {"user": entry.pw_uid, "group": entry.pw_gid}


class PostgresServer:
    """Runs until `stop`; `kill` and `start` are a crash and what follows, `end` and `start` a restart."""

    def __init__(self) -> None:
        initdb, postgres = find_tool("initdb"), find_tool("postgres")
        assert initdb is not None
        assert postgres is not None
        self._owner = _owner()
        # Not below pytest's folder, which only its owner may enter; a socket's path has to be short, too.
        self.folder = Path(tempfile.mkdtemp(prefix="tercet-pg-"))
        if self._owner:
            os.chown(self.folder, self._owner["user"], self._owner["group"])
        data = self.folder / "data"
        command = [initdb, "-D", str(data), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, **self._owner)
        assert done.returncode == 0, done.stderr
        self._log = (self.folder.parent / f"{self.folder.name}.log").open("wb")
        settings = [f"unix_socket_directories={self.folder}", "listen_addresses=", "fsync=off"]
        self._command = [postgres, "-D", str(data), *(word for each in settings for word in ("-c", each))]
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self.start()

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log, cwd="/", **self._owner)
        give_up_at = time.monotonic() + 60
        while True:
            try:
                self._execute("SELECT 1")
                return
            except sa.exc.OperationalError:
                if self._process.poll() is not None or time.monotonic() > give_up_at:
                    self.stop()
                    raise
            time.sleep(0.05)

    def make_database(self) -> str:
        """The URL of an empty database."""
        self._databases += 1
        name = f"ledger{self._databases}"
        self._execute(f"CREATE DATABASE {name}")
        return self._url(name)

    def kill(self) -> None:
        """Ends it at once, as a crash does."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(30)

    def end(self) -> None:
        """Ends it in good order, without waiting for its clients."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(30)

    def hang(self) -> None:
        """None of its processes does anything until `go_on`."""
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """After `hang`."""
        for pid in self._pids():
            os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        """Ends it for good."""
        self.kill()
        self._log.close()
        Path(self._log.name).unlink()
        shutil.rmtree(self.folder)

    def _pids(self) -> list[int]:
        """The server, which is stopped first, so that it starts no more of them, and one for each connection."""
        assert self._process is not None
        pid = self._process.pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def _url(self, name: str) -> str:
        return f"postgresql+psycopg://{USER}@/{name}?host={self.folder}"

    def _execute(self, statement: str) -> None:
        engine = sa.create_engine(self._url("postgres"), isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                connection.exec_driver_sql(statement)
        finally:
            engine.dispose()
