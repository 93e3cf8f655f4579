"""Opens a file of a run that may be anybody's: a file, not what never ends or never begins."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from .json_data import RunFileError


def open_plain(path: Path, most_bytes: int) -> BinaryIO:
    """Open for reading. Raises RunFileError for what is no plain file, or a larger one; OSError."""
    # A pipe to which nobody writes would not open.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            raise RunFileError(f"{path} is no plain file")
        if found.st_size > most_bytes:
            raise RunFileError(f"{path} has {found.st_size:,} bytes; {most_bytes:,} are the most that is read")
        return open(number, "rb")
    except BaseException:
        os.close(number)
        raise
