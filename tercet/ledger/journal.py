"""A gateway's journal: what is on its way to the database, in files that outlive the process.

Two files take turns. What is appended goes to one; once all of the other is in the database, that one is emptied, and
when the first has grown they change places. So they are hardly larger than what waits, and nothing is ever moved. Who
appends reaches the kernel, not the disk: a process may be killed at any moment; a host that loses its power takes the
last seconds with it. Whose journal it is holds a lock on the first file, which ends with the process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tercet.errors import LedgerError

# From that size on the files change places as soon as the other one is empty.
TURN_BYTES = 1 << 20

_ENDS = (".0.journal", ".1.journal")


class Journal:
    """That of the gateway `instance`; the names of its files begin with `prefix`. One thread may append while another
    one, or the same, calls `settle`; `turn` is called by neither meanwhile."""

    def __init__(self, prefix: Path, instance: str) -> None:
        self._paths = _paths(prefix, instance)
        self._files: list[int] = []
        self._sizes = [0, 0]
        self._current = 0

    def open(self) -> None:
        """Makes the files. Raises LedgerError if it cannot, or if a process has them."""
        first, second = self._paths
        making = first.with_name(f"{first.name}.new")
        try:
            if first.exists():
                raise LedgerError(f"its journal {first} is another process's")
            with contextlib.ExitStack() as undo:
                # It has its name once it is locked: nobody takes it for one that was left. And it has no name any more
                # before the lock is gone.
                self._files.append(_open(making, os.O_CREAT | os.O_EXCL))
                undo.callback(self._let_go)
                undo.callback(making.unlink, missing_ok=True)
                fcntl.flock(self._files[0], fcntl.LOCK_EX)
                os.rename(making, first)
                undo.callback(first.unlink, missing_ok=True)
                self._files.append(_open(second, os.O_CREAT | os.O_TRUNC))
                undo.pop_all()
        except OSError as error:
            raise LedgerError(
                f"its journal {first}: {error.strerror}; ledger.journal_folder may name another place"
            ) from error

    @property
    def found(self) -> bool:
        """Whether its files are there for whoever comes next: nobody has deleted them."""
        try:
            pairs = zip(self._files, self._paths, strict=True)
            return all(os.path.samestat(os.fstat(file), os.stat(path)) for file, path in pairs)
        except (OSError, ValueError):
            return False

    def append(self, line: bytes) -> None:
        """Raises OSError if there is no room for it, or the journal is not open; then nothing of it is there."""
        if not self._files:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        file = self._files[self._current]
        written = os.write(file, line)
        if written != len(line):
            os.ftruncate(file, self._sizes[self._current])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._sizes[self._current] += written

    def turn(self) -> None:
        """Whoever calls this is about to write all that was appended so far."""
        if self._sizes[self._current] >= TURN_BYTES and not self._sizes[1 - self._current]:
            self._current = 1 - self._current

    def settle(self) -> None:
        """All that was appended before the last `turn` is in the database."""
        other = 1 - self._current
        if self._sizes[other] and self._files:
            os.ftruncate(self._files[other], 0)
            self._sizes[other] = 0

    def close(self, *, remove: bool) -> None:
        """Lets it go, for whoever finds it; `remove`: there is nothing in it that is not in the database."""
        if remove and self._files:
            _remove(self._paths)
        self._let_go()

    def _let_go(self) -> None:
        files, self._files, self._sizes, self._current = self._files, [], [0, 0], 0
        for file in reversed(files):
            os.close(file)


@dataclass(frozen=True, slots=True)
class LeftJournal:
    """What a gateway has left that is no more."""

    instance: str
    lines: tuple[bytes, ...]
    paths: tuple[Path, Path]

    def remove(self) -> None:
        """All of it is in the database."""
        _remove(self.paths)


def find_journals(prefix: Path) -> list[str]:
    """The instances that have a journal of this prefix, or have left one. Raises OSError."""
    start, end = f"{prefix.name}.", _ENDS[0]
    names = [name for name in os.listdir(prefix.parent) if name.startswith(start) and name.endswith(end)]
    return [name[len(start) : -len(end)] for name in sorted(names)]


@contextlib.contextmanager
def take_left(prefix: Path, instance: str) -> Iterator[LeftJournal | None]:
    """What is in the journal of an instance; nobody else can take it meanwhile. None if a process has it, or if it is
    gone. Raises OSError."""
    first, second = _paths(prefix, instance)
    with contextlib.ExitStack() as stack:
        try:
            file = os.open(first, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield None
            return
        stack.callback(os.close, file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = os.path.samestat(os.fstat(file), os.stat(first))
        except (BlockingIOError, FileNotFoundError):
            taken = False
        if not taken:
            yield None
            return
        # Each by itself: the last line of one may have no end.
        lines = [line for path in (first, second) if path.exists() for line in path.read_bytes().split(b"\n")]
        yield LeftJournal(instance, tuple(filter(None, lines)), (first, second))


def _paths(prefix: Path, instance: str) -> tuple[Path, Path]:
    first, second = (prefix.with_name(f"{prefix.name}.{instance}{end}") for end in _ENDS)
    return first, second


def _open(path: Path, flags: int) -> int:
    # For its owner alone, as the database.
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o600)


def _remove(paths: tuple[Path, Path]) -> None:
    """The first, by which it is found, last."""
    for path in reversed(paths):
        path.unlink(missing_ok=True)
