"""A run and the folder that it is kept in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .json_data import RunFileError
from .record import Row, Sample, read_rows, read_samples, write_lines
from .summary import Summary, read_summary, write_summary

ROWS, SAMPLES, SUMMARY = "requests.jsonl", "samples.jsonl", "summary.json"


@dataclass(frozen=True, slots=True)
class Run:
    """All that is known of a run. Rows are in the order in which they were due, point by point."""

    summary: Summary
    rows: tuple[Row, ...]
    samples: tuple[Sample, ...]


def write_run(folder: Path, run: Run) -> None:
    """Makes the folder if it is not there. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / ROWS, run.rows)
    write_lines(folder / SAMPLES, run.samples)
    # Last: a folder with a summary is whole.
    write_summary(folder / SUMMARY, run.summary)


def read_run(folder: Path) -> Run:
    """Without samples if it has no file of them. Raises RunFileError."""
    try:
        summary = read_summary(folder / SUMMARY)
        samples = read_samples(folder / SAMPLES) if (folder / SAMPLES).exists() else ()
        return Run(summary, tuple(read_rows(folder / ROWS)), tuple(samples))
    except OSError as error:
        raise RunFileError(f"cannot read {error.filename or folder}: {error.strerror}") from error
