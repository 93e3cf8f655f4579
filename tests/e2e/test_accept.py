"""`tercet accept` on real meshes: a healthy one passes all lines, a fault that is planted fails its own line alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

from .conftest import LIMIT_S, ROOT, Mesh, free_port

pytestmark = pytest.mark.e2e

# Limits of time are for any machine: what is planted is beyond them by what it is, not by a machine's pace.
SPEC = """
[load.steady]
arrivals = "closed:2"
requests = 6
input = "constant:16"
output = "constant:24"

[load.flood]
arrivals = "closed:20"
requests = 20
input = "constant:8"
output = "constant:120"

[outputs]
references = "answers.json"
prompts = ["The capital of France is", "1, 2, 3, 4,"]
chats = ["What is the color of the sky?"]
max_tokens = 8
company = 2

[faults]
requests = 2
prompt_tokens = 40
max_tokens = 24
settle_s = 5

[[line]]
measure = "ttft_p95_ms"
limit = 100_000

[[line]]
name = "no stream stands still"
measure = "largest_gap_p99_ms"
limit = 3_000

[[line]]
measure = "failed_percent"

[[line]]
measure = "qualified_per_s"
limit = 0.01

[[line]]
name = "the queue is short"
measure = "waiting_most"
load = "flood"
limit = 4
required = true
"""
ALWAYS = (
    "wrong_references", "wrong_finish_reasons", "wrong_usage", "changed_by_company", "changed_by_repeat",
    "going_on_after_cancel", "wrong_ends", "blocks_left", "requests_left", "freed_p99_ms",
)  # fmt: skip
LINES = "".join(
    f'[[line]]\nmeasure = "{name}"\nrequired = true\n{"limit = 60_000" if name.endswith("_ms") else ""}\n'
    for name in ALWAYS
)
# What each fault is, and the line that it fails.
PLANTED = {
    "slow": ("worker", "largest_gap_p99_ms"),
    "leak": ("worker", "blocks_left"),
    "finish": ("gateway", "wrong_finish_reasons"),
}


def accept(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    spec = folder / "slo.toml"
    if not spec.exists():
        spec.write_text(SPEC + LINES, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "tercet", "accept", "--spec", str(spec), *words],
        cwd=ROOT, capture_output=True, text=True, timeout=2 * LIMIT_S,
    )  # fmt: skip


@pytest.fixture(scope="module")
def answers(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a healthy mesh answers, recorded."""
    folder = tmp_path_factory.mktemp("answers")
    done = accept(folder, "--address", mesh.address, "--record")
    assert done.returncode == 0, done.stderr
    return (folder / "answers.json").read_text(encoding="utf-8")


def verdicts(folder: Path, answers: str, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and each line by its measure."""
    (folder / "answers.json").write_text(answers, encoding="utf-8")
    done = accept(folder, "--out", str(folder / "out"), "--junit", str(folder / "junit.xml"), "--json", *words)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, {each["measure"]: each for each in json.loads(done.stdout)["lines"]}


def bounded(own_mesh: Callable[..., Mesh], **settings: str) -> Mesh:
    """A mesh whose queue is short."""
    few = {"TERCET_WORKER_MAX_NUM_SEQS": "4", "TERCET_SCHEDULER_MAX_QUEUED_REQUESTS": "4"}
    return own_mesh(**{**few, **settings})


def test_a_healthy_mesh_passes_all_lines(own_mesh: Callable[..., Mesh], answers: str, tmp_path: Path) -> None:
    port = free_port()
    mesh = bounded(own_mesh, TERCET_GATEWAY_HTTP_PORT=str(port))
    mesh.start()
    status, lines = verdicts(tmp_path, answers, "--address", mesh.address)
    assert {name: each["verdict"] for name, each in lines.items() if each["verdict"] != "pass"} == {}, lines
    assert status == 0
    suite = Xml.parse(tmp_path / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == (str(len(lines)), "0", "0")
    assert (tmp_path / "out" / "flood" / "summary.json").exists()

    # What an OpenAI server does not tell fails where it is required, and is left out where not.
    over_http = tmp_path / "http"
    over_http.mkdir()
    (over_http / "slo.toml").write_text(
        '[outputs]\nreferences = "answers.json"\nprompts = ["The capital of France is"]\nchats = []\nmax_tokens = 8\n'
        "[faults]\nrequests = 1\nmax_tokens = 16\nsettle_s = 1\n" + LINES.replace("required = true", "")
    )
    status, lines = verdicts(over_http, answers, "--openai", f"http://127.0.0.1:{port}")
    not_told = {"going_on_after_cancel", "blocks_left", "requests_left", "freed_p99_ms"}
    assert {name for name, each in lines.items() if each["verdict"] == "not told"} == not_told, lines
    assert {each["verdict"] for name, each in lines.items() if name not in not_told} == {"pass"}, lines
    assert status == 0


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_fails_its_own_line(
    fault: str, own_mesh: Callable[..., Mesh], answers: str, tmp_path: Path
) -> None:
    service, measure = PLANTED[fault]
    mesh = bounded(own_mesh, PLANTED_FAULT=fault)
    mesh.modules[service] = "tests.e2e.planted_faults"
    mesh.start()
    status, lines = verdicts(tmp_path, answers, "--address", mesh.address)
    assert {name for name, each in lines.items() if each["verdict"] != "pass"} == {measure}, lines
    assert status == 1


def test_a_queue_without_end_fails_its_own_line(own_mesh: Callable[..., Mesh], answers: str, tmp_path: Path) -> None:
    mesh = bounded(own_mesh, TERCET_SCHEDULER_MAX_QUEUED_REQUESTS="100000")
    mesh.start()
    status, lines = verdicts(tmp_path, answers, "--address", mesh.address)
    assert {name for name, each in lines.items() if each["verdict"] != "pass"} == {"waiting_most"}, lines
    assert status == 1


def test_what_cannot_be_measured_is_neither(tmp_path: Path) -> None:
    nowhere = accept(tmp_path, "--address", f"127.0.0.1:{free_port()}", "--record")
    assert nowhere.returncode == 2
    assert "does not say what it serves" in nowhere.stderr
    (tmp_path / "slo.toml").write_text("[load.a]\nrte = 2\n[[line]]\nmeasure = 'ttft'\n")
    wrong = accept(tmp_path)
    assert wrong.returncode == 2
    assert [line.partition(";")[0] for line in wrong.stderr.splitlines()] == [
        "tercet: load.a.rte: unknown key", "tercet: line 1.measure: 'ttft' is not known",
    ]  # fmt: skip
