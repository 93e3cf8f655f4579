"""A run goes to its folder and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tercet.load.folder import ROWS, SUMMARY, Run, read_run, write_run
from tercet.load.json_data import RunFileError
from tercet.load.summary import VERSION, Summary, summarize
from tercet.load.tally import Tally
from tests.load.rows import done, refused, sample


def test_a_run_comes_back_and_what_is_missing_is_told(tmp_path: Path) -> None:
    rows, samples = (done(0), refused(1)), (sample(1.0),)
    point = summarize(rows, samples, Tally(), point=0, offered_per_s=1.0, warm_up_s=0.0)
    run = Run(Summary(VERSION, "", {}, {}, (point,)), rows, samples)
    folder = tmp_path / "some" / "folder"
    write_run(folder, run)
    assert read_run(folder) == run
    (folder / ROWS).unlink()
    with pytest.raises(RunFileError, match=f"cannot read .*{ROWS}: No such file"):
        read_run(folder)
    (folder / SUMMARY).unlink()
    with pytest.raises(RunFileError, match=f"cannot read .*{SUMMARY}: No such file"):
        read_run(folder)
