"""`tercet bench run`: what it writes and shows, and wrong flags by name."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tercet.cli import main
from tercet.cli.bench import shown_command
from tercet.load.folder import read_run
from tercet.load.target import AnswerError
from tests.load.fake_servers import Gateway, gateway
from tests.load.scripted import Script
from tests.load.wire import Wire


@pytest.fixture
def served() -> Iterator[tuple[Gateway, str]]:
    """A gateway in a thread of its own; each third request is refused."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def script(number: int) -> Script:
        return Script(0.0, 0.0, AnswerError("QUEUE_FULL", "") if number % 3 == 2 else None)

    scope = gateway(Wire(script))
    yield asyncio.run_coroutine_threadsafe(scope.__aenter__(), loop).result(30)
    asyncio.run_coroutine_threadsafe(scope.__aexit__(None, None, None), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(autouse=True)
def unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded here is not for this process to keep."""
    monkeypatch.setattr("tercet.garbage.settle", lambda: None)


def bench(*words: str) -> Result:
    return CliRunner().invoke(main, ["bench", "run", *words])


def test_a_run_is_written_and_shown(served: tuple[Gateway, str], tmp_path: Path) -> None:
    server, address = served
    out = tmp_path / "run"
    done = bench(
        "--address", address, "--arrivals", "at-once", "--requests", "9", "--input", "constant:12",
        "--output", "constant:3", "--classes", "a,b", "--tenant", "alice:key=k-a", "--tenant", "bob", "--seed", "4",
        "--slo", "ttft=1min", "--started-with", "tercet up --num-workers 2", "--out", str(out),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    run = read_run(out)
    assert len(run.rows) == len(server.requests) == 9
    assert {len(request.token_ids.ids) for request in server.requests} == {12}
    assert set(server.keys) <= {"Bearer k-a", ""}
    (point,) = run.summary.points
    assert (point.outcomes["completed"], point.outcomes["refused"], point.refusals) == (6, 3, {"QUEUE_FULL": 3})
    assert set(point.by_tenant) == {"alice", "bob"}
    for shown in ("9 requests", "6 completed, 3 refused", "refused: 3 QUEUE_FULL", "first token", "alice", "qual./s"):
        assert shown in done.stdout
    assert f"all of it is in {out}" in done.stderr
    assert run.summary.workload["slo"][""]["ttft_s"] == 60.0
    assert run.summary.environment["server"]["start_parameters"] == "tercet up --num-workers 2"
    assert "k-a" not in (out / "summary.json").read_text()


def test_as_json_it_is_the_summary(served: tuple[Gateway, str], tmp_path: Path) -> None:
    words = ["--arrivals", "closed:2", "--requests", "2", "--output", "constant:2", "--out", str(tmp_path / "run")]
    done = bench("--address", served[1], "--json", *words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["points"][0]["outcomes"]["completed"] == 2


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--input", "huge"], "--input: 'huge' is none of short"),
        (["--output", "uniform:5"], "--output: "),
        (["--arrivals", "never"], "--arrivals: "),
        (["--rate", "1,x"], "--rate: 'x' is not a number"),
        (["--rate", "0"], "--rate: 0 is not between 1e-06 and 1e+06"),
        (["--rate", "1e9"], "--rate: 1e9 is not between 1e-06 and 1e+06"),
        (["--requests", "0"], "'--requests': 0 is not in the range"),
        (["--rate", "1,2", "--arrivals", "closed:3"], "--rate: closed:3 has no rate"),
        (["--duration", "5", "--warm-up", "6"], "--warm-up: "),
        (["--arrivals", "at-once"], "--requests: is needed"),
        (["--tenant", "a:b=c"], "--tenant: a has no b"),
        (["--classes", "a=b"], "--classes: "),
        (["--priorities", "x"], "--priorities: "),
        (["--slo", "speed=1s"], "--slo: "),
        (["--slo", "nix:ttft=1s"], "--slo: no request is of class 'nix'"),
        (["--classes", "batch,nix"], "--classes: the server has no class 'nix'; it has batch"),
        (["--slo", "nix:ttft=1s", "--classes", "nix"], "--classes: the server has no class 'nix'"),
        (["--shared-prefix", "0.5"], "--shared-prefix: '0.5' is not PART:TOKENS"),
        (["--slow-reader-ratio", "0.5:0"], "--slow-reader-ratio: "),
        (["--prompts", "/no/such/file"], "--prompts: cannot read"),
        (["--trace", "/no/such/file"], "--trace: cannot read"),
        (["--cancel-ratio", "2"], "'--cancel-ratio': 2.0 is not in the range"),
        (["--temperature", "nan"], "'--temperature': nan is not a finite number"),
        (["--openai", "localhost"], "--openai: 'localhost' is not a URL"),
        (["--input", "constant:5000"], "--input: 5,000 tokens and an output of 128 do not fit a context of 4,096"),
    ],
)
def test_a_wrong_flag_is_named(served: tuple[Gateway, str], words: list[str], problem: str) -> None:
    served[0].traffic.classes.add(name="batch")
    done = bench("--address", served[1], *words)
    assert done.exit_code == 2
    assert problem in " ".join(done.output.split())
    assert not served[0].requests


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = bench("--address", "127.0.0.1:1", "--requests", "1", "--out", str(tmp_path / "run"))
    assert done.exit_code == 1
    assert done.output.startswith("tercet: the gateway at 127.0.0.1:1 does not say what it serves: no gateway answers")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_points_that_were_over_stay_when_it_is_interrupted(
    served: tuple[Gateway, str], tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "run"
    words = ["--address", served[1], "--arrivals", "constant", "--requests", "3", "--rate", "50,0.001"]
    words += ["--input", "constant:4", "--output", "constant:2", "--out", str(out)]
    # Whoever runs tests in the background ignores Ctrl-C, and with it what is started there.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "tercet", "bench", "run", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stderr is not None
            said = [next(line for line in running.stderr if "1/2: 50 requests/s: over" in line)]
            running.send_signal(number)
            said += running.stderr.readlines()
        finally:
            running.kill()
    assert running.returncode == 130
    assert said[-1] == f"tercet: interrupted: {out} has 1 of 2 points\n"
    run = read_run(out)
    assert (run.summary.interrupted, len(run.summary.points), len(run.rows)) == (True, 1, 3)


def test_a_load_of_which_nothing_is_answered_fails(served: tuple[Gateway, str], tmp_path: Path) -> None:
    served[0].wire = Wire(lambda number: Script(error=AnswerError("QUEUE_FULL", "")))
    words = ["--address", served[1], "--arrivals", "at-once", "--requests", "2", "--out", str(tmp_path / "run")]
    done = bench(*words)
    assert done.exit_code == 1
    assert done.stderr.endswith("tercet: no request was answered\n")
    assert not read_run(tmp_path / "run").summary.interrupted


def test_no_run_is_written_over_another(served: tuple[Gateway, str], tmp_path: Path) -> None:
    words = ["--address", served[1], "--arrivals", "at-once", "--requests", "1", "--out", str(tmp_path)]
    assert bench(*words).exit_code == 0
    done = bench(*words)
    assert (done.exit_code, len(served[0].requests)) == (2, 1)
    assert f"--out: {tmp_path} has a run already" in " ".join(done.output.split())
    done = bench(*words[:-1], str(tmp_path / "summary.json"))
    assert (done.exit_code, len(served[0].requests)) == (1, 1)
    assert "cannot write" in done.output


def test_commands_are_shown_without_keys() -> None:
    words = ["/usr/bin/tercet", "bench", "run", "--api-key", "one", "--tenant", "a:key=two,weight=2", "--api-key=three"]
    words += ["--openai", "http://me:four@host/v1", "--tenant", "b:key=@file"]
    shown = shown_command(words)
    assert not any(key in shown for key in ("one", "two", "three", "four"))
    assert shown.startswith("tercet bench run --api-key ...")
    assert "weight=2" in shown
    assert "key=@file" in shown
