"""A run and the folder that it is kept in."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
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


class RunFolder:
    """A folder that takes a run point by point, so that what is over is there whatever becomes of the rest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._summary: Summary | None = None

    @property
    def num_points(self) -> int:
        """That are over."""
        return 0 if self._summary is None else len(self._summary.points)

    def take(self, part: Run) -> None:
        """One more point. Until `finish` the folder is that of a run that was interrupted. Raises OSError."""
        before = self._summary
        write_lines(self._folder / ROWS, part.rows, behind=before is not None)
        write_lines(self._folder / SAMPLES, part.samples, behind=before is not None)
        points = part.summary.points if before is None else (*before.points, *part.summary.points)
        self._summary = replace(part.summary, points=points)
        write_summary(self._folder / SUMMARY, replace(self._summary, interrupted=True))

    def finish(self) -> None:
        """There are no more points. Raises OSError."""
        if self._summary is not None:
            write_summary(self._folder / SUMMARY, self._summary)


def read_run(folder: Path) -> Run:
    """Without samples if it has no file of them. Raises RunFileError, also for a summary of other rows."""
    try:
        summary = read_summary(folder / SUMMARY)
        samples = read_samples(folder / SAMPLES) if (folder / SAMPLES).exists() else ()
        run = Run(summary, tuple(read_rows(folder / ROWS)), tuple(samples))
    except OSError as error:
        raise RunFileError(f"cannot read {error.filename or folder}: {error.strerror}") from error
    _check(folder, run)
    return run


def _check(folder: Path, run: Run) -> None:
    """Raises RunFileError where files are of different runs, or one was cut off at the end of a line."""
    wanted = {point.point: point.offered + point.warm_up for point in run.summary.points}
    if len(wanted) != len(run.summary.points):
        raise RunFileError(f"{folder / SUMMARY} has a point twice")
    counts = Counter(row.point for row in run.rows)
    for point in sorted(wanted.keys() | counts.keys()):
        if counts[point] != wanted.get(point, 0):
            raise RunFileError(
                f"{folder / ROWS} has {counts[point]:,} requests of point {point}, the summary {wanted.get(point, 0):,}"
            )
    strange = {sample.point for sample in run.samples} - wanted.keys()
    if strange:
        raise RunFileError(f"{folder / SAMPLES} has samples of point {min(strange)}, which the summary does not know")
