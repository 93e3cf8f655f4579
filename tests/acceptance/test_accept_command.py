"""`tercet accept` on the command line: what it shows, writes and exits with, on a gateway that follows a script."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tercet.cli import main
from tercet.load.target import AnswerError
from tests.load.fake_servers import gateway
from tests.load.scripted import Script
from tests.load.wire import Wire

SPEC = """
[load.a]
arrivals = "closed:1"
requests = 4
input = "constant:8"
output = "constant:2"
[[line]]
measure = "{measure}"
limit = {limit}
"""


@pytest.fixture
def address() -> Iterator[str]:
    """Of a gateway in a thread of its own; each second request is refused."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def script(number: int) -> Script:
        return Script(0.0, 0.0, AnswerError("QUEUE_FULL", "", retry_after_s=1.0) if number % 2 else None)

    scope = gateway(Wire(script))
    _, told = asyncio.run_coroutine_threadsafe(scope.__aenter__(), loop).result(30)
    yield told
    asyncio.run_coroutine_threadsafe(scope.__aexit__(None, None, None), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(autouse=True)
def unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded here is not for this process to keep."""
    monkeypatch.setattr("tercet.garbage.settle", lambda: None)


@pytest.fixture
def accept(tmp_path: Path) -> Callable[..., Result]:
    def run(measure: str, limit: float, *words: str) -> Result:
        path = tmp_path / "slo.toml"
        path.write_text(SPEC.format(measure=measure, limit=limit))
        out = [] if "--record" in words else ["--out", str(tmp_path / "out")]
        return CliRunner().invoke(main, ["accept", "--spec", str(path), *out, *words])

    return run


@pytest.mark.parametrize(
    ("measure", "limit", "status", "shown"),
    [
        ("qualified_percent", 50, 0, "PASS"),
        ("qualified_percent", 51, 1, "FAIL"),
        ("untyped_refusals", 0, 0, "PASS"),
        ("held_rate", 1, 2, "SKIP"),
        ("cost_per_qualified", 1, 2, "needs cost.worker_hour"),
    ],
)
def test_it_exits_by_what_it_found(
    accept: Callable[..., Result], address: str, measure: str, limit: float, status: int, shown: str
) -> None:
    done = accept(measure, limit, "--address", address)
    assert done.exit_code == status, done.output
    assert shown in done.output


def test_lines_are_written_for_machines_and_the_run_is_kept(
    accept: Callable[..., Result], address: str, tmp_path: Path
) -> None:
    done = accept("qualified_percent", 50, "--address", address, "--json", "--junit", str(tmp_path / "junit.xml"))
    (line,) = json.loads(done.stdout)["lines"]
    assert (line["verdict"], line["figure"], line["where"]) == ("pass", 50.0, str(tmp_path / "out" / "a"))
    assert (tmp_path / "out" / "a" / "requests.jsonl").exists()
    assert b'tests="1"' in (tmp_path / "junit.xml").read_bytes()
    again = accept("qualified_percent", 50, "--address", address)
    assert (again.exit_code, "is not empty" in again.output) == (2, True)


def test_a_server_that_is_not_there_cannot_be_measured(accept: Callable[..., Result], tmp_path: Path) -> None:
    done = accept("qualified_percent", 50, "--address", "127.0.0.1:9")
    assert done.exit_code == 2
    assert "does not say what it serves" in done.output
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_written_is_told_first(accept: Callable[..., Result], address: str, tmp_path: Path) -> None:
    done = accept("qualified_percent", 50, "--address", address, "--junit", str(tmp_path / "none" / "junit.xml"))
    assert done.exit_code == 2
    assert "cannot write" in done.output
    assert "load a" not in done.output


@pytest.mark.parametrize(
    ("words", "problem"), [(["--openai", "x"], "is not a URL"), (["--record"], "names no file in outputs.references")]
)
def test_flags_that_cannot_be_are_told(accept: Callable[..., Result], words: list[str], problem: str) -> None:
    done = accept("qualified_percent", 50, *words)
    assert done.exit_code == 2
    assert problem in done.output
