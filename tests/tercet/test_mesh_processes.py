import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tercet import mesh_processes
from tercet.config import ConfigErrors, MeshConfig, load_config
from tercet.errors import ConfigError
from tercet.mesh_processes import MeshProcesses, ServiceFailedError, check_ports, last_problem, link
from tercet.ports import check_port_free, free_ports

FAKE = str(Path(__file__).with_name("fake_service.py"))
FREE = {"gateway.port": 0, "scheduler.port": 0, "worker.port": 0, "gateway.drain_seconds": 0}


def _mesh(tmp_path, seen, behaviours=None, **options) -> MeshProcesses:
    behaviours = behaviours or {}
    return MeshProcesses(
        load_config(None, None, FREE),
        on_change=seen.append,
        log_dir=tmp_path,
        command=lambda name: (sys.executable, FAKE, name, behaviours.get(name, "ok")),
        **options,
    )


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


async def _until_gone(pids) -> bool:
    for _ in range(200):
        if all(_gone(pid) for pid in pids):
            return True
        await asyncio.sleep(0.05)
    return False


async def test_the_three_start_find_each_other_and_stop_edge_first(tmp_path):
    seen = []
    async with _mesh(tmp_path, seen) as mesh:
        assert {status.name for status in seen if status.state == "ready"} == {"gateway", "scheduler", "worker"}
        pids = {status.pid for status in seen}
        config = mesh.config
        assert mesh.address == f"127.0.0.1:{config.gateway.port}"
    assert [s.name for s in seen if s.state == "stopped"] == ["gateway", "scheduler", "worker"]
    assert all(s.exit_code == 0 for s in seen if s.state == "stopped")
    assert await _until_gone(pids)
    for name in ("gateway", "scheduler", "worker"):
        said = (tmp_path / f"{name}.log").read_text().split()
        assert said == [name, f"127.0.0.1:{config.scheduler.port}", f"127.0.0.1:{config.worker.port}"]


async def test_a_service_that_cannot_start_is_named_with_its_reason_and_the_others_stop(tmp_path):
    seen = []
    with pytest.raises(ServiceFailedError) as caught:
        async with _mesh(tmp_path, seen, {"worker": "broken"}):
            pytest.fail("it must not start")
    assert str(caught.value) == "worker: worker.kv_cache_memory: too small for one block"
    assert caught.value.status.exit_code == 2
    assert await _until_gone({status.pid for status in seen})


async def test_a_traceback_gives_its_last_line_the_exit_code_and_the_log(tmp_path):
    with pytest.raises(ServiceFailedError, match=r"scheduler: .*exit code 1: ValueError: boom; see .*scheduler\.log"):
        async with _mesh(tmp_path, [], {"scheduler": "torn"}):
            pytest.fail("it must not start")


async def test_a_service_that_never_becomes_ready_ends_the_start(tmp_path):
    seen = []
    with pytest.raises(ServiceFailedError, match="gateway: not ready after 3 s"):
        async with _mesh(tmp_path, seen, {"gateway": "mute"}, start_timeout_s=3):
            pytest.fail("it must not start")
    assert await _until_gone({status.pid for status in seen})


async def test_a_death_while_running_is_reported(tmp_path):
    seen = []
    async with _mesh(tmp_path, seen) as mesh:
        (pid,) = {status.pid for status in seen if status.name == "scheduler"}
        os.kill(pid, signal.SIGKILL)
        status = await asyncio.wait_for(mesh.failure(), 20)
    assert (status.name, status.state) == ("scheduler", "failed")
    # Its last line is about its start, and no account of its end.
    assert status.detail == f"killed by SIGKILL; see {tmp_path / 'scheduler.log'}"
    assert [s.name for s in seen if s.state == "stopped"] == ["gateway", "worker"]


async def test_a_service_that_does_not_stop_is_killed(tmp_path):
    seen = []
    async with _mesh(tmp_path, seen, {"gateway": "stubborn"}, stop_margin_s=2):
        pids = {status.pid for status in seen}
    stopped = {s.name: s for s in seen if s.state == "stopped"}
    assert "killed" in stopped["gateway"].detail
    assert (stopped["scheduler"].exit_code, stopped["worker"].exit_code) == (0, 0)
    assert await _until_gone(pids)


async def test_a_cancel_during_the_start_leaves_nothing(tmp_path):
    seen = []

    async def start() -> None:
        async with _mesh(tmp_path, seen, {"gateway": "mute"}):
            pytest.fail("it must not start")

    task = asyncio.create_task(start())
    while not any(status.state == "ready" for status in seen):  # noqa: ASYNC110 - `seen` is a plain list
        await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await _until_gone({status.pid for status in seen})


async def test_a_port_in_use_is_found_before_anything_starts(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        seen = []
        mesh = MeshProcesses(load_config(None, None, {**FREE, "scheduler.port": port}), on_change=seen.append)
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}.*--scheduler-port") as caught:
            await mesh.__aenter__()
    assert caught.value.key == "scheduler.port"
    assert seen == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's parent-death signal is Linux's")
def test_children_die_when_the_parent_is_killed(tmp_path):
    program = f"""
import asyncio, sys
from pathlib import Path
from tercet.config import load_config
from tercet.mesh_processes import MeshProcesses

async def main():
    mesh = MeshProcesses(
        load_config(None, None, {FREE!r}),
        on_change=lambda status: print(status.state, status.pid, flush=True),
        log_dir=Path({str(tmp_path)!r}),
        command=lambda name: (sys.executable, {FAKE!r}, name, "ok"),
    )
    async with mesh:
        print("up", 0, flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""
    root = str(Path(mesh_processes.__file__).resolve().parents[1])
    env = {**os.environ, "PYTHONPATH": root}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=env) as parent:
        pids = set()
        for line in parent.stdout:
            state, pid = line.split()
            if state == "up":
                break
            pids.add(int(pid))
        parent.kill()
        parent.wait(20)
    assert len(pids) == 3
    deadline = time.monotonic() + 20
    while not all(_gone(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(_gone(pid) for pid in pids)


def test_link_connects_by_ports_and_loopback():
    config = load_config(
        None,
        None,
        {
            "gateway.host": "0.0.0.0",
            "scheduler.host": "::",
            "worker.host": "0.0.0.0",
            "worker.port": 7,
            "scheduler.port": 8,
        },
    )
    linked = link(config)
    assert linked.gateway.scheduler == "[::1]:8"
    assert linked.scheduler.workers == ("127.0.0.1:7",)
    assert linked.gateway.port == MeshConfig().gateway.port


def test_link_gives_three_different_free_ports():
    linked = link(load_config(None, None, FREE))
    ports = {linked.gateway.port, linked.scheduler.port, linked.worker.port}
    assert len(ports) == 3
    for port in ports:
        check_port_free("x.port", "127.0.0.1", port)


def test_free_ports_differ():
    assert len(set(free_ports(20))) == 20


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_that_is_not_ours_names_the_key(host):
    with pytest.raises(ConfigError, match=r"gateway\.port"):
        check_port_free("gateway.port", host, 0)


def test_services_on_one_port_of_one_host_are_found_before_anything_starts():
    (port,) = free_ports(1)
    same = {**FREE, "gateway.port": port, "scheduler.port": port}
    with pytest.raises(ConfigError, match=rf"^scheduler\.port: is {port}, which is gateway\.port too"):
        check_ports(load_config(None, None, same))
    with pytest.raises(ConfigError, match="gateway"):
        check_ports(load_config(None, None, {**same, "gateway.host": "0.0.0.0"}))
    with pytest.raises(ConfigErrors) as caught:
        check_ports(load_config(None, None, {**same, "worker.host": "192.0.2.1"}))
    assert [problem.key for problem in caught.value.problems] == ["worker.port", "scheduler.port"]
    check_ports(load_config(None, None, FREE))
    check_ports(load_config(None, None, {**same, "scheduler.host": "127.0.0.2"}))


@pytest.mark.parametrize("fmt", ["console", "json"])
@pytest.mark.parametrize(("level", "kept"), [("info", False), ("warning", False), ("error", True)])
def test_only_an_error_of_the_log_explains_an_end(tmp_path, fmt, level, kept):
    program = (
        "import structlog; from tercet.telemetry import configure_logging; "
        f"configure_logging('worker', 'debug', '{fmt}'); structlog.get_logger().{level}('something_happened', epoch=1)"
    )
    log = tmp_path / "x.log"
    with log.open("wb") as stream:
        subprocess.run([sys.executable, "-c", program], stderr=stream, check=True)
    assert "something_happened" in log.read_text()
    assert ("something_happened" in last_problem(log)) == kept


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("\n\n", ""),
        ("a\nb\n\n", "b"),
        ("tercet: worker.port: in use\n", "worker.port: in use"),
        ("ValueError: boom [info] x\n", "ValueError: boom [info] x"),
        ("{broken\n", "{broken"),
    ],
)
def test_last_problem(tmp_path, text, line):
    log = tmp_path / "x.log"
    with contextlib.suppress(FileNotFoundError):
        log.unlink()
    assert last_problem(log) == ""
    log.write_text(text)
    assert last_problem(log) == line
