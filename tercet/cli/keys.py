"""Single keys of a terminal, as they are pressed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def keys_pressed(on_key: Callable[[str], None]) -> Iterator[None]:
    """Calls `on_key` for each key, without waiting for the end of a line and without showing it. Does nothing if
    standard input is no terminal. Ctrl-C stays a signal."""
    if not sys.stdin.isatty():
        yield
        return
    fd, loop = sys.stdin.fileno(), asyncio.get_running_loop()

    def read() -> None:
        pressed = os.read(fd, 64)
        if not pressed:
            # The terminal is gone, and would be ready to say so for ever.
            loop.remove_reader(fd)
        for key in pressed.decode("utf-8", "replace"):
            on_key(key)

    before = termios.tcgetattr(fd)
    # What was pressed before is not lost.
    tty.setcbreak(fd, termios.TCSADRAIN)
    loop.add_reader(fd, read)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
