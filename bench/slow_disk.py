"""A disk that is slow for files of certain names, in a process that is started with its environment."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".c")
_COMPILERS = ("gcc", "cc", "clang")


def find_compiler() -> str | None:
    """A C compiler; None if there is none."""
    return next(filter(None, map(shutil.which, _COMPILERS)), None)


class SlowDisk:
    """As fast as it is until it is told to be slow. `files` is what the names of those that are contain."""

    def __init__(self, folder: Path, files: str) -> None:
        """Compiles the library into `folder`. Raises RuntimeError without a compiler, or if that fails."""
        compiler = find_compiler()
        if compiler is None:
            raise RuntimeError(f"a slow disk needs a C compiler: {', '.join(_COMPILERS)}")
        library = folder / "slow_disk.so"
        command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        self._control = folder / "slow_disk.ms"
        self.set_delay(0)
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "SLOW_DISK_FILES": files,
            "SLOW_DISK_CONTROL": str(self._control),
        }

    def set_delay(self, ms: int) -> None:
        """Of each write to the disk, and of each wait for it, from now on."""
        self._control.write_text(str(ms))
