"""Commands on their way to the executor, in order. Knows nothing of what they mean."""

from __future__ import annotations

import threading
from collections import deque

from .messages import Command


class Mailbox:
    """Anybody may `put`; one thread reads: it looks at the first command, obeys it, and then takes it out."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._filled = threading.Condition()

    def __len__(self) -> int:
        """Commands that were put and not yet taken out, the one that is being obeyed among them."""
        return len(self._commands)

    def put(self, command: Command) -> None:
        """Appends a command."""
        with self._filled:
            self._commands.append(command)
            self._filled.notify()

    def first(self) -> Command | None:
        """The command that is next; it stays."""
        return self._commands[0] if self._commands else None

    def take(self) -> None:
        """Takes the first command out: it has been obeyed."""
        self._commands.popleft()

    def wait(self, timeout_s: float | None) -> bool:
        """Waits for a command, for at most `timeout_s` seconds if given; whether there is one."""
        with self._filled:
            return self._filled.wait_for(lambda: len(self._commands) > 0, timeout_s)
