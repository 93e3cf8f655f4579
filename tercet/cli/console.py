"""Where commands print what is more than lines: a terminal, a pipe or a file, whatever each of them can take."""

from __future__ import annotations

import errno
import io
import os
import sys

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

# Of a table that nobody shortens.
_MAX_WIDTH = 10_000
# What is assumed where nothing says it.
_WIDTH, _HEIGHT = 80, 25


class Output(Console):
    """Standard output. Characters that its encoding does not have are question marks. A reader that has left is
    BrokenPipeError, which ends a command quietly."""

    def __init__(self) -> None:
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="replace")
        super().__init__(highlight=False)
        # The environment may say 0. Any other size is asked for again and again: a terminal's changes.
        if not self.width:
            self.width = _WIDTH
        if not self.height:
            self.height = _HEIGHT

    def on_broken_pipe(self) -> None:
        """Rich would end the process itself, in the middle of whatever runs."""
        self.quiet = True
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    @property
    def is_screen(self) -> bool:
        """Whether what is on it can be replaced."""
        return self.is_terminal and not self.is_dumb_terminal

    def print_whole(self, table: Table) -> None:
        """However narrow a terminal is: a number that is cut is none."""
        wide = self.options.update(width=_MAX_WIDTH)
        self.width = max(self.width, Measurement.get(self, wide, table).maximum)
        self.print(table)
