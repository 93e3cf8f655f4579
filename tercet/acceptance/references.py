"""Outputs that were recorded when all was well, in a file of JSON: what the same questions have to be answered with."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from tercet.load.json_data import RunFileError, from_data

from .question import Question, Said

VERSION = 1


@dataclass(frozen=True, slots=True)
class Reference:
    """One answer."""

    question: Question
    said: Said


@dataclass(frozen=True, slots=True)
class References:
    """All of a file. `revision` is None where the server does not tell it."""

    version: int
    model: str
    revision: str | None
    answers: tuple[Reference, ...]


def write_references(path: Path, references: References) -> None:
    """Raises OSError."""
    path.write_text(json.dumps(dataclasses.asdict(references), indent=1) + "\n", encoding="utf-8")


def read_references(path: Path) -> References:
    """Raises RunFileError."""
    try:
        references = from_data(References, json.loads(path.read_text(encoding="utf-8")), str(path))
    except OSError as error:
        raise RunFileError(f"cannot read {path}: {error.strerror}; `tercet accept --record` writes it") from error
    except ValueError as error:
        raise RunFileError(f"{path} is not JSON: {error}") from error
    if references.version > VERSION:
        raise RunFileError(f"{path} is of version {references.version}; this reads up to {VERSION}")
    return references
