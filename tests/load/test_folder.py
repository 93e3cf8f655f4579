"""A run goes to its folder and comes back."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from tercet.load.folder import ROWS, SAMPLES, SUMMARY, Run, RunFolder, read_run, write_run
from tercet.load.json_data import RunFileError
from tercet.load.summary import VERSION, Summary, summarize
from tercet.load.tally import Tally
from tests.load.rows import done, refused, sample


def small_run() -> Run:
    rows, samples = (done(0), refused(1)), (sample(1.0),)
    point = summarize(rows, samples, Tally(), point=0, offered_per_s=1.0, warm_up_s=0.0)
    return Run(Summary(VERSION, "", {}, {}, (point,)), rows, samples)


def test_a_run_comes_back_and_what_is_missing_is_told(tmp_path: Path) -> None:
    run, folder = small_run(), tmp_path / "some" / "folder"
    write_run(folder, run)
    assert read_run(folder) == run
    (folder / ROWS).unlink()
    with pytest.raises(RunFileError, match=f"cannot read .*{ROWS}: No such file"):
        read_run(folder)
    (folder / SUMMARY).unlink()
    with pytest.raises(RunFileError, match=f"cannot read .*{SUMMARY}: No such file"):
        read_run(folder)


def test_a_run_that_is_taken_point_by_point_is_there_from_the_first_on(tmp_path: Path) -> None:
    one = small_run()
    rows = tuple(dataclasses.replace(row, point=1) for row in one.rows)
    (point,) = one.summary.points
    two = Run(
        dataclasses.replace(one.summary, points=(dataclasses.replace(point, point=1),)), rows, (sample(2.0, point=1),)
    )
    (tmp_path / ROWS).write_text("of a run that came to nothing")
    folder = RunFolder(tmp_path)
    assert folder.num_points == 0
    folder.take(one)
    assert read_run(tmp_path) == dataclasses.replace(one, summary=dataclasses.replace(one.summary, interrupted=True))
    folder.take(two)
    assert (folder.num_points, read_run(tmp_path).summary.interrupted) == (2, True)
    folder.finish()
    points = (*one.summary.points, *two.summary.points)
    whole = Run(dataclasses.replace(one.summary, points=points), one.rows + two.rows, one.samples + two.samples)
    assert read_run(tmp_path) == whole
    assert {path.name for path in tmp_path.iterdir()} == {ROWS, SAMPLES, SUMMARY}


def test_files_of_different_runs_are_told(tmp_path: Path) -> None:
    run = small_run()
    for rows, problem in (
        ((), f"{ROWS} has 0 requests of point 0, the summary 2"),
        ((*run.rows, done(0, point=3)), f"{ROWS} has 1 requests of point 3, the summary 0"),
    ):
        write_run(tmp_path, dataclasses.replace(run, rows=rows))
        with pytest.raises(RunFileError, match=problem):
            read_run(tmp_path)
    write_run(tmp_path, dataclasses.replace(run, samples=(sample(1.0, point=7),)))
    with pytest.raises(RunFileError, match=f"{SAMPLES} has samples of point 7"):
        read_run(tmp_path)
    twice = dataclasses.replace(run.summary, points=run.summary.points * 2)
    write_run(tmp_path, dataclasses.replace(run, summary=twice))
    with pytest.raises(RunFileError, match=f"{SUMMARY} has a point twice"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"cpus": math.nan}, r"Summary\.environment\.cpus is nan"),
        ({"a": [[[1e300]]]}, r"environment\.a\[0\]\[0\]\[0\] is"),
    ],
)
def test_a_description_of_numbers_that_are_none_is_told(
    tmp_path: Path, environment: dict[str, object], problem: str
) -> None:
    write_run(tmp_path, small_run())
    data = json.loads((tmp_path / SUMMARY).read_text())
    (tmp_path / SUMMARY).write_text(json.dumps({**data, "environment": environment}))
    with pytest.raises(RunFileError, match=problem):
        read_run(tmp_path)


@pytest.mark.parametrize("depth", [40, 900, 200_000])
def test_a_deep_description_is_told(tmp_path: Path, depth: int) -> None:
    write_run(tmp_path, small_run())
    text = (tmp_path / SUMMARY).read_text()
    (tmp_path / SUMMARY).write_text(
        text.replace('"environment": {}', f'"environment": {{"a": {"[" * depth}{"]" * depth}}}')
    )
    with pytest.raises(RunFileError, match=f"{SUMMARY}: .*nested too deeply"):
        read_run(tmp_path)
