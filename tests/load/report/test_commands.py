"""``tercet bench report`` and ``tercet bench compare`` on folders of runs."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tercet.cli.root import main
from tercet.ledger.ledger import Ledger
from tercet.load.folder import SAMPLES, SUMMARY, read_run, write_run

from .made_run import WORKLOAD, random_rows, run
from .test_charts import sweep
from .test_cost import charged, sample, worker


def bench(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, words)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path / "run", sweep())
    return tmp_path / "run"


def written(tmp_path: Path, name: str, seeds: Sequence[int], slower: float = 1.0) -> list[Path]:
    folders = [tmp_path / f"{name}{seed}" for seed in seeds]
    for path, seed in zip(folders, seeds, strict=True):
        write_run(path, run(random_rows(seed, 400, slower=slower)))
    return folders


def test_a_page_is_put_beside_the_run(folder: Path, tmp_path: Path) -> None:
    done = bench("report", folder)
    assert (done.exit_code, done.stdout) == (0, f"{folder}/report.html\n")
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "The knee is at 4" in text
    assert "per qualified request" not in text
    done = bench("report", folder, "--out", tmp_path / "page.html", "--png", tmp_path / "plots")
    assert done.exit_code == 0
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == text
    assert {"latency.png", "ttft.png", "requests.png"} <= {path.name for path in (tmp_path / "plots").iterdir()}


def test_with_a_price_it_has_costs(folder: Path) -> None:
    done = bench("report", folder, "--gpu-hour-price", "3.6")
    assert (done.exit_code, done.stderr.count("--workers")) == (2, 1)
    assert bench("report", folder, "--gpu-hour-price", "3.6", "--workers", "2").exit_code == 0
    assert "per qualified request" in (folder / "report.html").read_text(encoding="utf-8")


def test_with_a_ledger_it_has_charges(folder: Path, tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "ledger.db"), time.time)
    ledger.create()
    ledger.write("one", [charged(1, "r1"), charged(2, "r2", tenant="globex")], [])
    ledger.close()
    write_run(folder, run([each for each in sweep().rows if not each.point], [sample(worker("a"))]))
    words = ("report", folder, "--ledger", tmp_path / "ledger.db")
    assert bench(*words).exit_code == 0
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "tenant globex" in text
    assert "The ledger has 2 of the run&#x27;s 40 requests" in text
    # At the price that the ledger's requests were charged with.
    assert "Cost of each load" in text
    assert bench(*words, "--gpu-hour-price", "1").exit_code == 0
    assert (folder / "report.html").read_text(encoding="utf-8") != text
    done = bench("report", folder, "--ledger", tmp_path / "nothing" / "ledger.db")
    assert done.exit_code == 2
    assert done.stderr.startswith("tercet: ledger.database: ")


def test_what_is_no_run(tmp_path: Path, folder: Path) -> None:
    done = bench("report", tmp_path / "nothing")
    assert (done.exit_code, done.stderr) == (
        2, f"tercet: cannot read {tmp_path}/nothing/summary.json: No such file or directory\n",
    )  # fmt: skip
    (folder / SUMMARY).write_text("{", encoding="utf-8")
    assert bench("report", folder).exit_code == 2
    write_run(folder, sweep())
    assert bench("report", folder, "--out", tmp_path / "nothing" / "page.html").exit_code == 1
    (tmp_path / "file").touch()
    assert "cannot write" in bench("report", folder, "--png", tmp_path / "file").stderr


def test_a_run_without_samples_is_one(folder: Path) -> None:
    (folder / SAMPLES).unlink()
    assert bench("report", folder).exit_code == 0
    assert "The run has no samples." in (folder / "report.html").read_text(encoding="utf-8")


def test_descriptions_of_another_form_are_no_bug(folder: Path) -> None:
    whole = read_run(folder)
    odd = dataclasses.replace(
        whole.summary, workload={"warm_up_s": "x"}, environment={"host": {"gpus": 1.5}, "same_host": True}
    )
    write_run(folder, dataclasses.replace(whole, summary=odd))
    assert bench("report", folder).exit_code == bench("compare", folder, folder).exit_code == 0
    assert "--workers" in bench("report", folder, "--gpu-hour-price", "1").stderr


def test_a_run_that_was_interrupted_says_so(folder: Path) -> None:
    whole = read_run(folder)
    write_run(folder, dataclasses.replace(whole, summary=dataclasses.replace(whole.summary, interrupted=True)))
    assert bench("report", folder).exit_code == 0
    assert "The run was interrupted: loads that were to follow" in (folder / "report.html").read_text(encoding="utf-8")
    assert "B: one run was interrupted" in bench("compare", folder, folder, "--format", "json").stdout


def test_two_runs_as_a_table_json_and_a_page(tmp_path: Path) -> None:
    (a,), (b,) = written(tmp_path, "a", [1]), written(tmp_path, "b", [2], slower=1.5)
    done = bench("compare", a, b)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert next(line for line in lines if line.startswith("TPOT p50")).split()[-1] == "worse"
    assert next(line for line in lines if line.startswith("failed")).split()[-1] == "noise"
    data = json.loads(bench("compare", a, b, "--format", "json").stdout)
    (tpot,) = [each for each in data["points"][0]["figures"] if each["name"] == "TPOT p50"]
    assert tpot["verdict"] == "worse"
    assert tpot["change_low"] < 50 < tpot["change_high"]
    (high,) = [each for each in data["points"][0]["figures"] if each["name"] == "TTFT p99"]
    assert (high["change"], high["verdict"]) == (None, "unknown")
    assert bench("compare", a, b, "--format", "html").stdout.startswith("<!doctype html>")
    assert bench("compare", a, b, "--seed", "1").stdout != done.stdout


def test_worse_can_fail(tmp_path: Path) -> None:
    (a,), (b,) = written(tmp_path, "a", [1]), written(tmp_path, "b", [2], slower=1.5)
    assert bench("compare", a, b, "--fail-on-worse").exit_code == 1
    assert bench("compare", a, a, "--fail-on-worse").exit_code == 0


def test_several_runs_a_side(tmp_path: Path) -> None:
    a, b = written(tmp_path, "a", [1, 2, 3]), written(tmp_path, "b", [4, 5, 6], slower=1.5)
    words = [word for name, side in (("--a", a), ("--b", b)) for path in side for word in (name, path)]
    done = bench("compare", *words)
    assert done.exit_code == 0
    assert "one run" not in done.stdout
    assert next(line for line in done.stdout.splitlines() if line.startswith("TPOT p50")).split()[-1] == "worse"


def test_other_workloads_need_a_word(tmp_path: Path) -> None:
    (a,) = written(tmp_path, "a", [1])
    other = run(random_rows(2, 400), workload={**WORKLOAD, "input": "long", "seed": 2})
    write_run(tmp_path / "b", other)
    done = bench("compare", a, tmp_path / "b")
    assert done.exit_code == 2
    assert done.stderr == (
        "tercet: the runs are of different workloads: input (None and long); --anyway compares them all the same\n"
    )
    done = bench("compare", a, tmp_path / "b", "--anyway")
    assert done.exit_code == 0
    assert "Workloads differ" in done.stdout


@pytest.mark.parametrize("words", [[], ["one"], ["1", "2", "3"], ["--a", "1"], ["1", "2", "--a", "3"]])
def test_two_sides_are_needed(words: list[str]) -> None:
    assert bench("compare", *words).exit_code == 2
