"""``tercet up`` and ``tercet demo`` with the real services and the embedded model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import tercet
from tercet.cli import main
from tercet.ports import check_port_free, free_ports

ROOT = Path(tercet.__file__).resolve().parents[1]
SERVICES = ("gateway", "scheduler", "worker")

pytestmark = [pytest.mark.e2e, pytest.mark.model]


class Up:
    """A running ``tercet up``; `lines` is what it printed until it was ready."""

    def __init__(self, *flags: str) -> None:
        self.names = SERVICES
        self.ports = dict(zip(SERVICES, free_ports(3), strict=True))
        self.flags = [f"--{name}-port={port}" for name, port in self.ports.items()]
        self.process = _tercet("up", *self.flags, "--kv-cache-memory", "64MiB", *flags)
        self.lines: list[str] = []
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("ready:"):
                break
        else:
            pytest.fail(f"it did not become ready: {self.lines} {self.process.stderr.read()}")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports['gateway']}"

    def pid(self, name: str) -> int:
        return int(re.search(rf"^{name} .* pid (\d+)", "".join(self.lines), re.MULTILINE).group(1))

    def live_workers(self) -> set[str]:
        fleet = CliRunner().invoke(main, ["fleet", "--json", "--address", self.address])
        return {worker["address"] for worker in json.loads(fleet.stdout)["workers"] if worker["live"]}

    def all_gone(self) -> bool:
        deadline = time.monotonic() + 30
        pids = [self.pid(name) for name in self.names]
        while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.05)
        return not any(_alive(pid) for pid in pids)


def _tercet(*arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tercet", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
    )


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def up() -> Iterator[Up]:
    running = Up()
    yield running
    if running.process.poll() is None:
        running.process.kill()
    running.process.communicate()


def test_it_serves_names_a_taken_port_and_stops_cleanly_on_ctrl_c(up):
    done = CliRunner().invoke(main, ["generate", "Hi", "--max-tokens", "3", "--json", "--address", up.address])
    assert done.exit_code == 0, done.output
    assert '"completion_tokens": 3' in done.stdout

    second = _tercet("up", *up.flags)
    out, problem = second.communicate(timeout=60)
    assert second.returncode == 2
    assert problem.startswith(f"tercet: gateway.port: cannot listen on {up.address}")
    assert "starting" not in out

    (logs,) = re.findall(r"^logs: (.*)/\{gateway", "".join(up.lines), re.MULTILINE)
    assert sorted(path.name for path in Path(logs).iterdir()) == [f"{name}.log" for name in SERVICES]
    up.process.send_signal(signal.SIGINT)
    out, problem = up.process.communicate(timeout=60)
    assert (up.process.returncode, problem) == (0, "")
    assert re.findall(r"^(\w+) +stopped", out, re.MULTILINE) == list(SERVICES)
    assert up.all_gone()
    assert not Path(logs).exists()
    for name, port in up.ports.items():
        check_port_free(f"{name}.port", "127.0.0.1", port)


def test_a_death_is_named_and_ends_the_others(up):
    os.kill(up.pid("worker"), signal.SIGKILL)
    out, problem = up.process.communicate(timeout=60)
    assert (up.process.returncode, problem) == (1, "")
    assert re.search(r"^worker +failed .*SIGKILL", out, re.MULTILINE)
    assert re.findall(r"^(\w+) +stopped", out, re.MULTILINE) == ["gateway", "scheduler"]
    assert up.all_gone()


def test_two_workers_serve_and_the_mesh_goes_on_with_one():
    up = Up("--num-workers", "2", "--worker-port", "0")
    up.names = ("gateway", "scheduler", "worker-1", "worker-2")
    try:
        # It is ready with the first of them.
        deadline = time.monotonic() + 30
        while len(live := up.live_workers()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(live) == 2
        names = r"\{gateway,scheduler,worker-1,worker-2\}"
        (logs,) = re.findall(rf"^logs: (.*)/{names}\.log", "".join(up.lines), re.MULTILINE)
        os.kill(up.pid("worker-1"), signal.SIGKILL)
        assert re.search(r"^worker-1 +failed .*SIGKILL.*; worker-2 left$", up.process.stdout.readline())
        ask = ["generate", "Hi", "--max-tokens", "3", "--json", "--address", up.address]
        done = CliRunner().invoke(main, ask)
        assert done.exit_code == 0, done.output
        assert "worker-2" in (Path(logs) / "worker-2.log").read_text()
        up.process.send_signal(signal.SIGTERM)
        out, problem = up.process.communicate(timeout=60)
        assert (up.process.returncode, problem) == (0, "")
        assert re.findall(r"^(\S+) +stopped", out, re.MULTILINE) == ["gateway", "scheduler", "worker-2"]
        assert up.all_gone()
    finally:
        up.process.kill()
        up.process.communicate()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's parent-death signal is Linux's")
def test_nothing_survives_a_killed_parent(up):
    up.process.kill()
    up.process.wait(30)
    assert up.all_gone()


def test_the_demo_answers_and_leaves_nothing():
    process = _tercet("demo", "--kv-cache-memory", "64MiB")
    out, problem = process.communicate(timeout=120)
    assert (process.returncode, problem) == (0, "")
    assert "Paris" in out
    assert re.search(
        r"\d+ tokens · first token after \d+ ms · [\d.]+ tokens/s · KV blocks: \d+ used, \d+ freed, 0 of", out
    )
    pids = {int(pid) for pid in re.findall(r" pid (\d+)", out)}
    assert len(pids) == 3
    assert not any(_alive(pid) for pid in pids)
