"""The loads on the virtual clock: a table, a file and a picture of the same figures."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from bench.overload import main


def test_loads_are_parts_of_what_the_mesh_can_do(tmp_path: Path) -> None:
    file, picture = tmp_path / "overload.json", tmp_path / "overload.svg"
    options = [
        "--simulate",
        "--at-once",
        "60",
        "--seconds",
        "6",
        "--loads",
        "0.5,3",
        "--json",
        file,
        "--chart",
        picture,
    ]
    done = CliRunner().invoke(main, [str(option) for option in options], catch_exceptions=False)
    assert done.exit_code == 0
    result = json.loads(file.read_text())
    capacity = result["capacity"]
    assert f"capacity: {capacity:.2f} requests/s" in done.stdout
    runs = result["runs"]
    assert [(run["admission"], round(run["rate"] / capacity, 3)) for run in runs] == [
        ("enforce", 0.5),
        ("enforce", 3.0),
        ("off", 0.5),
        ("off", 3.0),
    ]
    for run in runs:
        offered = sum(flow["offered"] for flow in run["flows"].values())
        assert offered == round(run["rate"] * 6)
        assert list(run["flows"]) == ["chat", "retrieval", "summaries"]
        for flow in run["flows"].values():
            ended = flow["completed"] + sum(flow["refused"].values()) + sum(flow["failed"].values())
            assert ended == flow["offered"]
            assert f"{flow['offered']} offered" in done.stdout
            if run["admission"] == "off":
                assert flow["completed"] == flow["offered"]
    assert picture.read_text().startswith("<svg")


def test_rates_need_no_capacity(tmp_path: Path) -> None:
    file = tmp_path / "overload.json"
    options = ["--simulate", "--mix", "lengths", "--rates", "20", "--seconds", "3", "--admission", "shadow"]
    done = CliRunner().invoke(main, [*options, "--json", str(file)], catch_exceptions=False)
    assert done.exit_code == 0
    result = json.loads(file.read_text())
    assert "capacity" not in result
    (run,) = result["runs"]
    assert run["flows"]["chat"]["completed"] == 60
