"""The command that runs the CUDA kernels under a sanitizer, with a stand-in for the sanitizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker.ops.dtypes import KERNELS_BUILT

SCRIPT = Path(__file__).parents[2] / "cpp" / "sanitize_kernels.py"
pytestmark = pytest.mark.skipif(not KERNELS_BUILT, reason="needs worker._kernels")

# Finds a race in `norm`, and takes its time over `heads`.
STAND_IN = """#!/bin/sh
case "$2 $*" in
  racecheck*norm) echo "a race"; exit 99;;
  *heads) exec sleep 60;;
esac
"""


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_HOME": str(home)}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, env=environment)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    sanitizer = tmp_path / "bin" / "compute-sanitizer"
    sanitizer.parent.mkdir()
    sanitizer.write_text(STAND_IN)
    sanitizer.chmod(0o755)
    return tmp_path


def test_what_is_found_is_shown_and_fails(home: Path) -> None:
    done = run(home, "norm", "decode")
    assert done.returncode == 1
    assert "a race" in done.stdout
    assert [line.split()[:2] for line in done.stdout.splitlines() if line.endswith("clean")] == [
        ["memcheck", "norm"],
        ["memcheck", "decode"],
        ["racecheck", "decode"],
    ]
    assert run(home, "--tool", "memcheck", "norm").returncode == 0


def test_a_case_that_does_not_end_fails(home: Path) -> None:
    done = run(home, "--tool", "memcheck", "--timeout", "0.5", "heads", "norm")
    assert done.returncode == 1
    assert "not done after 0.5 s" in done.stdout
    assert "norm" in done.stdout.splitlines()[-1]


def test_a_case_that_there_is_not(home: Path) -> None:
    done = run(home, "nothing")
    assert done.returncode == 1
    assert "no case nothing; there are decode," in done.stderr
