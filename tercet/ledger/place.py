"""Where a ledger and its journals are, from settings alone. Opens nothing, and needs no database."""

from __future__ import annotations

import hashlib
import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from tercet.errors import LedgerError
from tercet.sections import LedgerSettings

# Words that are no place: "./none" is a file.
AUTO = "auto"
NONE = ("none", "")

_FILE = "ledger.db"
REMEDY = "set ledger.database to a file or a URL, or to none"


def ledger_place(settings: LedgerSettings, env: Mapping[str, str]) -> str | None:
    """A path or a URL; None if no ledger is kept. Raises LedgerError."""
    if settings.database in NONE:
        return None
    return str(state_folder(env) / _FILE) if settings.database == AUTO else settings.database


def make_ledger_folder(settings: LedgerSettings, env: Mapping[str, str]) -> None:
    """Makes the folder that nobody has named, if the ledger is there. Raises LedgerError."""
    if settings.database == AUTO:
        _make(state_folder(env), REMEDY)


def journal_prefix(settings: LedgerSettings, name: str, file: Path | None, env: Mapping[str, str]) -> Path:
    """What the names of the journals of a ledger begin with: beside its SQLite `file`, unless another folder is named;
    for a server in the user's state folder. `name` is the ledger's, without a password. Makes their folder. Raises
    LedgerError."""
    if file is not None and not settings.journal_folder:
        return file.resolve()
    folder = Path(settings.journal_folder).absolute() if settings.journal_folder else state_folder(env)
    _make(folder, "set ledger.journal_folder to another one")
    return folder / f"ledger-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def state_folder(env: Mapping[str, str]) -> Path:
    """Where programs keep what is to survive a restart, by the XDG base directories. Raises LedgerError if this user
    has no home."""
    named, home = (Path(env.get(name, "")) for name in ("XDG_STATE_HOME", "HOME"))
    # What is relative, or empty, is to be ignored.
    if named.is_absolute():
        return named / "tercet"
    if not home.is_absolute():
        try:
            home = Path(pwd.getpwuid(os.getuid()).pw_dir)
        except KeyError:
            raise LedgerError(f"this user has no home, and XDG_STATE_HOME is not set; {REMEDY}") from None
    return home / ".local" / "state" / "tercet"


def _make(folder: Path, remedy: str) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerError(f"{folder} cannot be made: {error.strerror}; {remedy}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise LedgerError(f"{folder} cannot be written; {remedy}")
