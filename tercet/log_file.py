"""A log in a file that is renamed when it is large, or that somebody else renames. Knows no events."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

from tercet.errors import ConfigError

_KEY = "log.file"


class LogFile:
    """Writes whole lines. At most `max_bytes` are in the file, unless a line has more; then it is renamed to file.1,
    what was file.1 to file.2, and so on to `backups`. With `max_bytes` 0 whoever rotates it may rename it: what comes
    next goes into a new one.

    What cannot be written, since the disk is full, is dropped; once there is room, the line that `dropped` makes of
    their number comes first.
    """

    def __init__(self, path: Path, max_bytes: int, backups: int, dropped: Callable[[int], str]) -> None:
        """Raises ConfigError if the file cannot be written."""
        self._path = path
        self._dropped = dropped
        self._max_bytes = max_bytes
        self._backups = backups
        self._num_dropped = 0
        try:
            self._fd = self._open()
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise ConfigError(_KEY, f"{path} is no regular file")
            if not _is_locked(self._fd):
                raise ConfigError(_KEY, f"{path} is written by another process; each needs a file of its own")
            # A full disk lets files be made.
            _write(self._fd, b"\n")
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - 1)
        except OSError as error:
            raise ConfigError(_KEY, f"cannot write {path}: {error.strerror}") from error
        self._size = os.fstat(self._fd).st_size

    def write(self, line: str) -> None:
        """Writes a line, which has its end."""
        text = self._dropped(self._num_dropped) + line if self._num_dropped else line
        data = text.encode("utf-8", "replace")
        try:
            if self._max_bytes and self._size and self._size + len(data) > self._max_bytes:
                self._rotate()
            elif not self._max_bytes and self._is_elsewhere():
                self._reopen()
            _write(self._fd, data)
            self._size += len(data)
            self._num_dropped = 0
        except OSError:
            self._num_dropped += 1

    def flush(self) -> None:
        """What was written is in the file already."""

    def close(self) -> None:
        """Nothing more is written."""
        os.close(self._fd)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def _reopen(self) -> None:
        fd = self._open()
        _is_locked(fd)
        os.close(self._fd)
        self._fd, self._size = fd, os.fstat(fd).st_size

    def _rotate(self) -> None:
        for number in range(self._backups - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.replace(self._numbered(number + 1))
        self._path.replace(self._numbered(1))
        self._reopen()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _is_elsewhere(self) -> bool:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return True
        here = os.fstat(self._fd)
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)


def log_path(file: str, process: str) -> Path:
    """The file of one process of `tercet up`: its name stands in front of the suffix. The file itself for others, whose
    `process` is empty."""
    path = Path(file)
    return path.with_name(f"{path.stem}-{process}{path.suffix}") if process else path


def _is_locked(fd: int) -> bool:
    """Whether the file is this process's, for as long as it is open."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(fd: int, data: bytes) -> None:
    """All of it. Raises OSError; what was written of it by then is taken back."""
    size = os.fstat(fd).st_size
    written = os.write(fd, data)
    if written < len(data):
        try:
            # Says why there was no more room.
            written += os.write(fd, data[written:])
        finally:
            if written < len(data):
                os.ftruncate(fd, size)
