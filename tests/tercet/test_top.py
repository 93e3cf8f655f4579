"""tercet top: once, as JSON, on a terminal, and when the mesh is lost."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from command_line import ROOT, run, start

from tercet import errors
from tercet.v1 import operations_pb2 as pb


@pytest.fixture(autouse=True)
def traffic(gateway: Any) -> pb.Traffic:
    """What the gateway tells."""
    spread = pb.Spread(count=4, mean_seconds=0.3, p50_seconds=0.25, p95_seconds=0.5, p99_seconds=0.5)
    counts = pb.TrafficCounts(
        accepted=9, served=7, cancelled=1, generated_tokens=500, prompt_tokens=90, cached_tokens=40, wasted_tokens=2,
        refused={"QUEUE_FULL": 3}, failed={"DEADLINE_PASSED": 1}, preemptions=2,
        promises=pb.PromiseCounts(request=pb.PromiseCount(kept=6, broken=2)),
    )  # fmt: skip
    recent = pb.RecentService(ttft=spread, promises=pb.PromiseCounts(ttft=pb.PromiseCount(kept=3, broken=1)))
    load = pb.TrafficLoad(requests_waiting=2, tokens_waiting=70, oldest_seconds=0.75, requests_running=5, kv_blocks=8)
    chat = pb.ClassTraffic(name="interactive", load=load, counts=counts, recent=recent)
    chat.targets.ttft_seconds, chat.targets.ttft_percentile = 1.0, 95.0
    gateway.traffic.classes.add().CopyFrom(chat)
    for tenant in ("acme", None):
        gateway.traffic.tenants.add(tenant_id=tenant, traffic_class="interactive", load=load, counts=counts)
    gateway.traffic.tenants_omitted = 3
    gateway.traffic.forecasts.add(
        model="fake", count=9, median_error=0.25, median_bias=-0.125, tried=4, tried_in_time=1
    )
    return gateway.traffic


def test_once_it_prints_one_picture(gateway: Any) -> None:
    done = run("top", "--once", "--address", gateway.address)
    assert done.exit_code == 0
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == f"tercet {gateway.address} up 1.0 s"
    assert "interactive 2 750 ms 5 7 250 ms 500 ms 75 % - 3" in lines
    assert "refused interactive: QUEUE_FULL 3" in lines
    assert "acme 2 5 80 % - 75 % 3" in lines
    assert "and 3 more" in lines
    assert "\x1b" not in done.stdout


def test_once_as_json_it_tells_all_that_the_gateway_told(gateway: Any) -> None:
    done = run("top", "--once", "--json", "--address", gateway.address)
    told = json.loads(done.stdout)
    assert told["rates"] is None
    assert told["fleet"]["workers"][0]["blocks_total"] == 10
    (chat,) = told["traffic"]["classes"]
    assert chat["load"] == {
        "requests_waiting": 2, "tokens_waiting": 70, "oldest_s": 0.75, "requests_running": 5, "kv_blocks": 8,
    }  # fmt: skip
    assert chat["counts"]["refused"] == {"QUEUE_FULL": 3}
    assert chat["counts"]["failed"] == {"DEADLINE_PASSED": 1}
    assert chat["counts"]["promises"]["request"] == {"kept": 6, "broken": 2}
    assert (chat["counts"]["cached_tokens"], chat["counts"]["wasted_tokens"], chat["counts"]["preemptions"]) == (
        40,
        2,
        2,
    )
    assert (chat["recent"]["ttft"], chat["ttft"]["p95_s"]) == ({"kept": 3, "broken": 1}, 0.5)
    assert chat["targets"]["ttft_s"] == 1.0
    assert [each["tenant"] for each in told["traffic"]["tenants"]] == ["acme", None]
    assert told["traffic"]["tenants_omitted"] == 3
    (forecast,) = told["traffic"]["forecasts"]
    assert (forecast["median_error"], forecast["median_bias"], forecast["tried_in_time"]) == (0.25, -0.125, 1)


def test_nothing_to_wait_for_is_a_queue_without_an_oldest(gateway: Any) -> None:
    gateway.traffic.classes[0].load.Clear()
    told = json.loads(run("top", "--once", "--json", "--address", gateway.address).stdout)
    assert told["traffic"]["classes"][0]["load"]["oldest_s"] is None


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_once_without_a_gateway_is_an_error_of_one_line(more: tuple[str, ...]) -> None:
    done = run("top", "--once", "--address", "127.0.0.1:1", *more)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("tercet: GATEWAY_LOST: no gateway answers at 127.0.0.1:1")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("error", [errors.UnauthenticatedError("no key"), errors.PermissionDeniedError("no operator")])
@pytest.mark.parametrize("more", [(), ("--once",), ("--json",)])
def test_whoever_may_not_look_is_told_at_once(gateway: Any, error: errors.RequestError, more: tuple[str, ...]) -> None:
    gateway.traffic_error = error
    done = run("top", "--address", gateway.address, *more)
    assert (done.exit_code, done.stderr) == (1, f"tercet: {error.reason}: {error.message}\n")


@pytest.mark.parametrize("interval", ["0", "nan", "-1", "9999999", "x"])
def test_an_interval_is_a_time(interval: str) -> None:
    assert run("top", "--interval", interval).exit_code == 2


def test_as_json_it_goes_on_with_rates_over_a_loss_until_it_is_told_to_stop(gateway: Any) -> None:
    with start("top", "--json", "--interval", "0.1", "--address", gateway.address) as process:
        assert process.stdout is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        assert first["rates"] is None
        assert second["rates"]["seconds"] == 1.0
        assert second["rates"]["classes"]["interactive"] == {"accepted": 0.0, "tokens": 0.0, "refused": {}}
        gateway.traffic_error = errors.SchedulerLostError("no scheduler", retry_after_s=1.5)
        while "problem" not in (lost := json.loads(process.stdout.readline())):
            pass
        assert lost == {"problem": {"reason": "SCHEDULER_LOST", "message": "no scheduler", "retry_after_s": 1.5}}
        gateway.traffic_error = None
        while "problem" in (back := json.loads(process.stdout.readline())):
            pass
        assert back["rates"] is not None
        process.send_signal(signal.SIGINT)
        output, complaints = process.communicate(timeout=20)
    assert (process.returncode, complaints) == (0, "")
    assert all(json.loads(line) for line in output.splitlines())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_into_a_file_it_prints_one_picture_after_the_other(gateway: Any, number: signal.Signals) -> None:
    with start("top", "--interval", "0.1", "--address", gateway.address) as process:
        assert process.stdout is not None
        titles = 0
        while titles < 3:
            titles += process.stdout.readline().startswith("tercet ")
        process.send_signal(number)
        output, complaints = process.communicate(timeout=20)
    assert (process.returncode, complaints) == (0, "")
    assert "\x1b" not in output


# So that Ctrl-C reaches it. Not in a preexec_fn: that forks, and gRPC, which runs here, does not always survive it.
ON_ITS_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Terminal:
    """A terminal with `tercet top` on it."""

    def __init__(self, *arguments: str, kind: str) -> None:
        self.fd, inside = pty.openpty()
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(inside)
        self.seen = ""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": kind}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_ITS_TERMINAL, "-m", "tercet", "top", *arguments],
            stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True,
        )  # fmt: skip
        self.inside = inside

    def wait_for(self, condition: Callable[[str], bool], what: str, timeout_s: float = 30.0) -> None:
        """Reads until the condition holds for all that was written."""
        give_up = time.monotonic() + timeout_s
        while not condition(self.seen):
            if time.monotonic() > give_up:
                pytest.fail(f"not within {timeout_s:.0f} s: {what}; seen: {self.seen[-2000:]!r}")
            self._read(0.1)

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def end(self) -> int:
        """Waits for the end; returns the exit status."""
        give_up = time.monotonic() + 20
        while self.process.poll() is None:
            assert time.monotonic() < give_up, self.seen[-2000:]
            self._read(0.05)
        self._read(0.05)
        return self.process.returncode

    def _read(self, timeout_s: float) -> None:
        if select.select([self.fd], [], [], timeout_s)[0]:
            self.seen += os.read(self.fd, 65536).decode("utf-8", "replace")


@contextlib.contextmanager
def terminal(*arguments: str, kind: str = "xterm-256color") -> Iterator[Terminal]:
    there = Terminal(*arguments, kind=kind)
    try:
        yield there
    finally:
        there.process.kill()
        there.process.wait()
        os.close(there.fd)
        os.close(there.inside)


@pytest.mark.parametrize("key", ["q", "\x03"])
def test_on_a_terminal_it_ends_with_a_key_and_leaves_it_as_it_was(gateway: Any, key: str) -> None:
    with terminal("--interval", "0.1", "--address", gateway.address) as there:
        there.wait_for(lambda seen: "tok/s" in seen and "interactive" in seen, "a picture with rates")
        there.press("xyz")
        there.press(key)
        assert there.end() == 0
        # Another screen was opened and closed again, and the cursor is back.
        assert there.seen.count("\x1b[?1049h") == there.seen.count("\x1b[?1049l") == 1
        assert there.seen.rindex("\x1b[?25h") > there.seen.rindex("\x1b[?25l")
        assert termios.tcgetattr(there.inside) == there.before
        assert "Traceback" not in there.seen


def test_a_terminal_of_another_size_gets_another_picture(gateway: Any) -> None:
    with terminal("--interval", "60", "--address", gateway.address) as there:
        there.wait_for(lambda seen: "interactive" in seen, "a picture")
        assert "gap target" not in there.seen
        there.resize(30, 160)
        there.wait_for(lambda seen: "gap target" in seen, "a wide picture")
        there.press("q")
        assert there.end() == 0


@pytest.mark.parametrize("kind", ["dumb", "unknown"])
def test_a_terminal_that_cannot_be_wiped_gets_one_picture_after_the_other(gateway: Any, kind: str) -> None:
    with terminal("--interval", "0.1", "--address", gateway.address, kind=kind) as there:
        there.wait_for(lambda seen: seen.count("interactive") > 2, "three pictures")
        there.press("q")
        assert there.end() == 0
        assert "\x1b[?1049h" not in there.seen


def test_a_lost_gateway_is_shown_and_waited_for(gateway: Any) -> None:
    gateway.traffic_error = errors.SchedulerLostError("no scheduler")
    with terminal("--interval", "0.1", "--address", gateway.address) as there:
        there.wait_for(lambda seen: "SCHEDULER_LOST: no scheduler" in seen, "the problem")
        assert "interactive" not in there.seen
        gateway.traffic_error = None
        there.wait_for(lambda seen: "interactive" in seen, "a picture")
        there.press("q")
        assert there.end() == 0


def test_a_gateway_that_is_not_there_is_waited_for_and_can_be_left(gateway: Any) -> None:
    with terminal("--interval", "0.1", "--address", "127.0.0.1:1") as there:
        there.wait_for(lambda seen: "GATEWAY_LOST" in seen, "the problem")
        there.press("q")
        assert there.end() == 0
