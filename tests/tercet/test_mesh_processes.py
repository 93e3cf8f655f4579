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
from tercet.config import load_config
from tercet.errors import ConfigError
from tercet.mesh_layout import Member
from tercet.mesh_processes import MeshProcesses, ServiceFailedError, _environment, last_problem

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
        gateway, scheduler, worker = mesh.members
        assert mesh.address == gateway.address
    assert [s.name for s in seen if s.state == "stopped"] == ["gateway", "scheduler", "worker"]
    assert all(s.exit_code == 0 for s in seen if s.state == "stopped")
    assert await _until_gone(pids)
    for name in ("gateway", "scheduler", "worker"):
        said = (tmp_path / f"{name}.log").read_text().split()
        assert said == [name, scheduler.address, worker.address]


async def test_several_workers_have_names_ports_and_logs_of_their_own(tmp_path):
    seen = []
    async with _mesh(tmp_path, seen, num_workers=3) as mesh:
        addresses = [member.address for member in mesh.members[2:]]
        pids = {status.pid for status in seen}
        assert len(pids) == 5
    stopped = [status.name for status in seen if status.state == "stopped"]
    assert stopped[:2] == ["gateway", "scheduler"]
    assert sorted(stopped[2:]) == ["worker-1", "worker-2", "worker-3"]
    assert await _until_gone(pids)
    assert len(set(addresses)) == 3
    for member in mesh.members:
        assert (tmp_path / f"{member.name}.log").read_text().split()[2] == ",".join(addresses)


async def test_a_mesh_goes_on_while_a_worker_lives(tmp_path):
    seen = []

    def failed() -> list[str]:
        return [status.name for status in seen if status.state == "failed"]

    async with _mesh(tmp_path, seen, num_workers=3) as mesh:
        pids = {status.name: status.pid for status in seen}
        failure = asyncio.create_task(mesh.failure())
        for count, name in enumerate(("worker-2", "worker-1"), 1):
            os.kill(pids[name], signal.SIGKILL)
            while len(failed()) < count:  # noqa: ASYNC110 - `seen` is a plain list
                await asyncio.sleep(0.02)
            assert not failure.done()
        assert seen[-1].detail.endswith("worker-1.log; worker-3 left")
        os.kill(pids["worker-3"], signal.SIGKILL)
        status = await asyncio.wait_for(failure, 20)
    assert status.name == "worker-3"
    assert failed() == ["worker-2", "worker-1", "worker-3"]
    assert [s.name for s in seen if s.state == "stopped"] == ["gateway", "scheduler"]


async def test_a_mesh_goes_on_while_a_gateway_lives(tmp_path):
    seen = []
    async with _mesh(tmp_path, seen, num_gateways=2) as mesh:
        assert mesh.address not in {member.address for member in mesh.members}
        pids = {status.name: status.pid for status in seen}
        failure = asyncio.create_task(mesh.failure())
        os.kill(pids["gateway-1"], signal.SIGKILL)
        while seen[-1].state != "failed":  # noqa: ASYNC110 - `seen` is a plain list
            await asyncio.sleep(0.02)
        assert seen[-1].detail.endswith("gateway-1.log; gateway-2 left")
        assert not failure.done()
        os.kill(pids["gateway-2"], signal.SIGKILL)
        assert (await asyncio.wait_for(failure, 20)).name == "gateway-2"


async def test_a_dead_scheduler_ends_a_mesh_of_several_workers(tmp_path):
    seen = []
    async with _mesh(tmp_path, seen, num_workers=2) as mesh:
        pids = {status.name: status.pid for status in seen}
        os.kill(pids["worker-1"], signal.SIGKILL)
        os.kill(pids["scheduler"], signal.SIGKILL)
        status = await asyncio.wait_for(mesh.failure(), 20)
    assert status.name == "scheduler"


async def test_every_worker_must_start(tmp_path):
    with pytest.raises(ServiceFailedError, match=r"^worker-2: worker\.kv_cache_memory: too small"):
        async with _mesh(tmp_path, [], {"worker-2": "broken"}, num_workers=2):
            pytest.fail("it must not start")


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
    with pytest.raises(ServiceFailedError, match="gateway: not ready after 3 s; it does not serve; see "):
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


def test_children_get_the_settings_of_the_mesh_and_no_others():
    """Classes too: one that is taken away, and variables that the mesh itself overrides."""
    base = {"HOME": "/", "TERCET_CLASSES_OLD_RANK": "3", "TERCET_WORKER_PORT": "1", "TERCET_ISA": "avx2"}
    flags = {"classes.rag.enabled": False, "classes.own.rank": 4, "worker.port": 7}
    config = load_config(None, None, flags)
    environment = _environment(Member("worker", config), base)
    assert load_config(None, environment) == config
    assert "TERCET_CLASSES_OLD_RANK" not in environment
    assert (environment["HOME"], environment["TERCET_ISA"]) == ("/", "avx2")
