"""Workers on one device load one after the other, whatever becomes of one."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from worker.device_turn import device_turn


class Stopped(Exception):
    pass


def nothing(line: str) -> None:
    raise AssertionError(line)


def test_the_second_waits_for_the_first(tmp_path: Path) -> None:
    waits, order = threading.Event(), []

    def second() -> None:
        with device_turn("gpu-1", lambda line: waits.set(), tmp_path):
            order.append("second")

    thread = threading.Thread(target=second)
    with device_turn("gpu-1", nothing, tmp_path):
        thread.start()
        assert waits.wait(30)
        with device_turn("gpu-2", nothing, tmp_path):  # another device is free
            order.append("first")
    thread.join(30)
    assert order == ["first", "second"]


def test_a_wait_can_be_ended(tmp_path: Path) -> None:
    def stop(line: str) -> None:
        assert "gpu-1" in line
        raise Stopped

    with device_turn("gpu-1", nothing, tmp_path), pytest.raises(Stopped), device_turn("gpu-1", stop, tmp_path):
        raise AssertionError("it is not its turn")


def test_a_worker_that_fails_or_is_killed_gives_its_turn_back(tmp_path: Path) -> None:
    with pytest.raises(Stopped), device_turn("gpu-1", nothing, tmp_path):
        raise Stopped
    killed = (
        "import os, pathlib, sys, worker.device_turn as turns\n"
        "turn = turns.device_turn('gpu-1', print, pathlib.Path(sys.argv[1]))\n"
        "turn.__enter__()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", killed, str(tmp_path)], check=False, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (-9, b"")
    with device_turn("gpu-1", nothing, tmp_path):
        pass


def test_without_a_file_to_share_each_goes_its_way(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with device_turn("gpu-1", nothing, missing), device_turn("gpu-1", nothing, missing):
        assert not missing.exists()
