"""tercet up, the services and the demo: how they start, and what they say if they cannot."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest
from command_line import ROOT, run, start

from tercet.answer_messages import to_answer
from tercet.cli.demo import private, summary
from tercet.client import Accepted, Answer, Finished, FleetInfo, OutputEnd
from tercet.config import load_config
from tercet.mesh_info import WorkerInfo
from tercet.mesh_layout import layout
from tercet.messages import Timings, Usage
from tercet.ports import check_port_free, free_ports


def test_the_demo_runs_beside_anything():
    given = {"gateway.host": "0.0.0.0", "worker.port": 9, "tenants.store": "tenants.db"}
    config = private(load_config(None, None, given))
    # It has no key to ask with.
    assert config.tenants.store == ""
    # And leaves nothing behind.
    assert config.ledger.database == "none"
    assert {config.gateway.port, config.scheduler.port, config.worker.port} == {0}
    assert config.gateway.host == "127.0.0.1"
    assert len({member.settings.port for member in layout(config)}) == 3


def _answer(tokens: int, first_s: float, total_s: float) -> Answer:
    ends = (OutputEnd("stop", None),)
    finished = Finished(ends, Usage(5, 0, tokens, 3, 2), Timings(0.0, first_s, total_s, 0.0))
    return to_answer([("Paris.", (1,) * tokens, (), ())], Accepted("r", "m", "v", 0, 1, 5), finished)


def test_the_demo_sums_up_in_one_line():
    worker = WorkerInfo("a:1", True, "m", "cpu", 0, 100, 90, 10, 0, 8, 8)
    line = summary(_answer(9, 0.25, 2.25), FleetInfo(0, 0, 1, 0, (worker,)))
    assert line == (
        "9 tokens · first token after 250 ms · 4.0 tokens/s · KV blocks: 3 used, 2 freed, 0 of 100 in use now"
    )
    assert " - tokens/s" in summary(_answer(1, 0.25, 0.25), FleetInfo(0, 0, 1, 0, ()))


def test_up_that_cannot_listen_starts_nothing_and_leaves_no_folder(tmp_path):
    """A port in use, an address of another host, two services on one port: all are known before anything starts."""
    ports = free_ports(3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        used = taken.getsockname()[1]
        for flags, key in (
            ([f"--gateway-port={used}", f"--scheduler-port={ports[1]}"], "gateway.port"),
            (["--worker-host=192.0.2.1", f"--gateway-port={ports[0]}", f"--scheduler-port={ports[1]}"], "worker.port"),
            ([f"--gateway-port={ports[0]}", f"--scheduler-port={ports[0]}"], "scheduler.port"),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "tercet", "up", *flags, f"--worker-port={ports[2]}"],
                capture_output=True, text=True, timeout=60,
                env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
            )  # fmt: skip
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr.startswith(f"tercet: {key}: ")
            assert len(done.stderr.splitlines()) == 1
            assert "choose another port" not in done.stderr or f"with --{key.replace('.', '-')}" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_service_alone_that_cannot_listen_names_the_flag_it_has():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = subprocess.run(
            [sys.executable, "-m", "tercet", "scheduler", f"--port={taken.getsockname()[1]}"],
            capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert done.returncode == 2
    assert "scheduler.port: cannot listen on" in done.stderr
    assert done.stderr.endswith("choose another port with --port\n")
    assert "--port " in run("scheduler", "--help").stdout


def test_up_whose_reader_left_before_the_start_leaves_no_folder(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    flags = [f"--{name}-port=0" for name in ("gateway", "scheduler", "worker")]
    done = subprocess.run(
        [sys.executable, "-m", "tercet", "up", *flags],
        stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "host", "warned"),
    [
        ("scheduler", "127.0.0.1", []),
        ("scheduler", "0.0.0.0", [["tls.mesh_ca"], []]),
        # Without keys operators are whoever comes.
        ("gateway", "0.0.0.0", [["tenants.store", "tls.certificate"], ["Inference", "Operations"]]),
    ],
)
def test_a_service_that_others_can_reach_says_so(name, host, warned):
    flags = ["--host", host, "--port", "0", "--log-format", "json", "--tls-insecure-public-bind"]
    with start(name, *flags) as process:
        lines = []
        for line in process.stderr:
            lines.append(json.loads(line))
            if lines[-1]["event"] == "ready":
                break
        process.terminate()
        process.communicate(timeout=30)
    said = [line for line in lines if line["event"] == "listens_publicly"]
    assert [(line["level"], line["host"]) for line in said] == ([("warning", host)] if warned else [])
    assert [value for line in said for value in (line["without"], line["open_to_all"])] == warned


@pytest.mark.parametrize("name", ["up", "gateway", "scheduler", "worker"])
def test_no_service_lets_others_in_unasked(name, tmp_path):
    flag = "--worker-host=0.0.0.0" if name == "up" else "--host=0.0.0.0"
    done = subprocess.run(
        [sys.executable, "-m", "tercet", name, flag],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    service = "worker" if name == "up" else name
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"tercet: {service}.host: 0.0.0.0 can be reached from other hosts")
    assert "tls.insecure_public_bind" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_up_says_why_a_service_failed_and_leaves_nothing(tmp_path):
    """Real services: a model that is not there fails the start of gateway or worker."""
    ports = free_ports(3)
    flags = [f"--{name}-port={port}" for name, port in zip(("gateway", "scheduler", "worker"), ports, strict=True)]
    with start("up", "--model", str(tmp_path / "absent"), *flags, "--log-dir", str(tmp_path / "logs")) as process:
        out, problem = process.communicate(timeout=120)
    assert process.returncode == 2, (out, problem)
    assert "failed" in out
    assert f"{tmp_path}/absent does not exist" in out
    assert "Traceback" not in out + problem
    for port in ports:
        check_port_free("up", "127.0.0.1", port)
