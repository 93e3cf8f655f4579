"""One worker at a time loads and measures on a device: of what is taken meanwhile nobody knows by whom."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_ASK_EVERY_S = 0.1
_TELL_EVERY_S = 2.0


@contextmanager
def device_turn(name: str, progress: Callable[[str], None], folder: Path | None = None) -> Iterator[None]:
    """Waits until no other worker of this host has the turn of the device called `name`.

    `progress` is told so every few seconds, and may raise to end the wait. Where `folder` (that of
    temporary files) does not take the file that workers share, each goes its way.
    """
    path = (folder or Path(tempfile.gettempdir())) / f"tercet-{name}.turn"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError:
        yield
        return
    try:
        told = -_TELL_EVERY_S
        while not _taken(file):
            if (now := time.monotonic()) - told >= _TELL_EVERY_S:
                told = now
                progress(f"waiting for another worker that loads its model on {name}")
            time.sleep(_ASK_EVERY_S)
        yield
    finally:
        os.close(file)  # the system does it for a worker that is killed


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
