from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.errors import ConfigError
from tercet.log_file import LogFile, log_path
from tercet.telemetry import dropped_line

DROPPED = partial(dropped_line, "json")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 60), max_size=30), st.integers(20, 100), st.integers(1, 4))
def test_what_is_kept_is_the_end_of_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], max_bytes: int, backups: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    file = LogFile(folder / "a.log", max_bytes, backups, DROPPED)
    lines = [f"{number}".ljust(size, ".") + "\n" for number, size in enumerate(sizes)]
    for line in lines:
        file.write(line)
    file.close()
    names = [f"a.log.{number}" for number in range(backups, 0, -1)] + ["a.log"]
    assert {each.name for each in folder.iterdir()} <= set(names)
    parts = [(folder / name).read_text() for name in names if (folder / name).exists()]
    assert "".join(lines).endswith("".join(parts))
    # Lines stay whole, and a file is larger than it may be only for the sake of one.
    assert all(len(part) <= max_bytes or part.count("\n") == 1 for part in parts)
    if len(parts) <= backups:
        assert "".join(parts) == "".join(lines)


def test_a_file_that_is_there_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("before\n")
    file = LogFile(path, 0, 5, DROPPED)
    file.write("after\n")
    file.close()
    assert path.read_text() == "before\nafter\n"


@pytest.mark.parametrize("gone", [os.unlink, lambda path: os.rename(path, f"{path}-old")])
def test_a_file_that_somebody_else_renames_is_begun_anew(tmp_path: Path, gone: object) -> None:
    path = tmp_path / "a.log"
    file = LogFile(path, 0, 5, DROPPED)
    file.write("one\n")
    gone(path)  # type: ignore[operator]
    file.write("two\n")
    file.close()
    assert path.read_text() == "two\n"


@pytest.mark.parametrize("name", ["missing/a.log", ".", "/dev/full"])
def test_what_cannot_be_written_is_an_error_at_the_start(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"^log\.file: ") as caught:
        LogFile(tmp_path / name, 0, 5, DROPPED)
    assert caught.value.key == "log.file"


def test_a_service_does_not_start_without_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tercet", "scheduler", "--port", "0", "--log-file", str(tmp_path / "no" / "a.log")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == f"tercet: log.file: cannot write {tmp_path}/no/a.log: No such file or directory\n"


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    file = LogFile(path, 10, 5, DROPPED)
    for line in ("a line\n", "another\n"):
        file.write(line)
        with pytest.raises(ConfigError, match="is written by another process"):
            LogFile(path, 10, 5, DROPPED)
    file.close()
    LogFile(path, 10, 5, DROPPED).close()


def test_a_process_of_a_mesh_writes_its_own_file_and_nothing_to_standard_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tercet", "scheduler", "--port", "0", "--log-file", str(tmp_path / "mesh.log")]
    environment = {**os.environ, "TERCET_PROCESS_NAME": "scheduler-7"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    path = tmp_path / "mesh-scheduler-7.log"
    while process.poll() is None and not (path.exists() and "scheduler_ready" in path.read_text()):
        time.sleep(0.05)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert said == b""
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert "scheduler_stopped" in path.read_text()
    assert "service=scheduler-7" in path.read_text()


FULL = """
import resource, sys
from functools import partial
from pathlib import Path
from tercet.log_file import LogFile
from tercet.telemetry import configure_logging, dropped_line
import structlog
file = LogFile(Path(sys.argv[1]), 0, 5, partial(dropped_line, "json"))
configure_logging("worker", "info", "json", file)
log = structlog.get_logger()
log.info("before")
size = Path(sys.argv[1]).stat().st_size
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))
for number in range(3):
    log.info("on a full disk", number=number)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
log.info("after")
"""


def test_a_full_disk_costs_lines_and_tells_how_many(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    path = tmp_path / "a.log"
    subprocess.run([sys.executable, "-c", FULL, str(path)], check=True, timeout=60)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each["event"] for each in events] == ["before", "log_lines_dropped", "after"]
    assert events[1]["lines"] == 3


def test_each_process_of_a_mesh_has_its_own() -> None:
    assert log_path("/var/log/mesh.log", "worker-2") == Path("/var/log/mesh-worker-2.log")
    assert log_path("logs/mesh", "gateway") == Path("logs/mesh-gateway")
    assert log_path("mesh.log", "") == Path("mesh.log")
