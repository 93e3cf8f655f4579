"""Rows and samples go to a file and come back."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tercet.load.json_data import RunFileError
from tercet.load.record import read_rows, read_samples, write_lines
from tests.load.rows import done, refused, sample


def test_rows_and_samples_come_back(tmp_path: Path) -> None:
    rows, samples = [done(0), refused(1), done(2, sent_s=None, outcome="failed")], [sample(1.0), sample(2.0)]
    write_lines(tmp_path / "rows", rows)
    write_lines(tmp_path / "samples", samples)
    assert list(read_rows(tmp_path / "rows")) == rows
    assert list(read_samples(tmp_path / "samples")) == samples


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"due_s": None}, "line 2: Row.due_s is None"),
        ({"index": 1.5}, r"line 2: Row.index is 1\.5"),
        ({"index": True}, "line 2: Row.index is True"),
        ({"warm_up": 1}, "line 2: Row.warm_up is 1"),
        ({"tenant": 7}, "line 2: Row.tenant is 7"),
        ({"first_s": "x" * 99}, r"line 2: Row.first_s is 'x+\.\.\."),
        ({"first_s": math.nan}, "line 2: Row.first_s is nan"),
        ({"end_s": math.inf}, "line 2: Row.end_s is inf"),
        ({"due_s": 1e308}, r"line 2: Row.due_s is 1e\+308"),
        ({"due_s": 10**400}, r"line 2: Row.due_s is 1000+\.\.\."),
        ({"largest_gap_ms": -5.0}, r"line 2: Row.largest_gap_ms is -5\.0"),
        ({"output_tokens": -1}, "line 2: Row.output_tokens is -1"),
        ({"index": 10**20}, "line 2: Row.index is 1000"),
        ({"from_the_future": "x" * (1 << 20)}, "line 2: it is longer than 1,048,576 bytes"),
    ],
)
def test_a_field_of_another_type_is_told(tmp_path: Path, change: dict[str, object], problem: str) -> None:
    path = tmp_path / "rows"
    write_lines(path, [done(0), done(1)])
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{json.dumps(json.loads(second) | change)}\n")
    with pytest.raises(RunFileError, match=problem):
        list(read_rows(path))


def test_urgent_ones_and_those_sent_a_moment_early_are_read(tmp_path: Path) -> None:
    rows = [done(0, priority=-10, sent_s=-1e-5)]
    write_lines(tmp_path / "rows", rows)
    assert list(read_rows(tmp_path / "rows")) == rows


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (b"\xff\x00", "rows, line 2: 'utf-8' codec can't decode"),
        (b"[" * 200_000, "rows, line 2: it is nested too deeply"),
        (b'{"due_s": ' + b"[" * 900 + b"]" * 900 + b"}", "rows, line 2: "),
    ],
)
def test_bytes_that_are_no_row_are_told(tmp_path: Path, written: bytes, problem: str) -> None:
    path = tmp_path / "rows"
    write_lines(path, [done(0)])
    path.write_bytes(path.read_bytes() + written)
    with pytest.raises(RunFileError, match=problem):
        list(read_rows(path))


def test_fields_may_be_new_but_not_lack(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    write_lines(path, [done(0)])
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"from_the_future": 1}))
    assert list(read_rows(path)) == [done(0)]
    del data["due_s"]
    path.write_text(json.dumps(data))
    with pytest.raises(RunFileError, match="Row has no due_s"):
        list(read_rows(path))
    path.write_text("{")
    with pytest.raises(RunFileError, match="line 1"):
        list(read_rows(path))
