"""The programs of the SDK's page run as written, and print what stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tercet.client import DEFAULT_ADDRESS
from tests.e2e.conftest import ROOT, Mesh

pytestmark = pytest.mark.e2e

PAGE = (ROOT / "docs" / "sdk.md").read_text(encoding="utf-8")
# Each with what is printed, if that follows.
PROGRAMS = re.findall(r"^```python\n(.*?)^```\n(?:\n```\n(.*?)^```\n)?", PAGE, re.MULTILINE | re.DOTALL)


def test_there_is_something_to_run() -> None:
    assert len(PROGRAMS) == PAGE.count("```python") >= 6
    assert sum(bool(printed) for _, printed in PROGRAMS) >= 4


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_program(mesh: Mesh, number: int) -> None:
    program, printed = PROGRAMS[number]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.replace(DEFAULT_ADDRESS, mesh.address)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert printed in ("", done.stdout)
    mesh.wait_idle()
