"""What the README tells to type works as written, but for the address."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tercet.client import DEFAULT_ADDRESS

from .conftest import ROOT, Mesh

pytestmark = pytest.mark.e2e

BLOCKS = re.findall(r"^```\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
(GRPCURL_BLOCK,) = (block for block in BLOCKS if block.startswith("grpcurl "))
(CLI_BLOCK,) = (block for block in BLOCKS if "tercet generate" in block)
GRPCURL_COMMANDS = [f"grpcurl {command}".rstrip() for command in re.split(r"^grpcurl ", GRPCURL_BLOCK, flags=re.M)[1:]]
CLI_COMMANDS = [line for line in CLI_BLOCK.splitlines() if line.startswith("tercet ")]


def _shell(command: str, typed: str = "") -> str:
    """Standard output of a command line, in a shell where the commands of this environment are found."""
    python = shlex.quote(sys.executable)
    done = subprocess.run(
        ["bash", "-c", f'tercet() {{ {python} -m tercet "$@"; }}\n{command}'],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        input=typed,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_is_something_to_try() -> None:
    assert len(GRPCURL_COMMANDS) >= 3
    assert {command.split()[1] for command in CLI_COMMANDS} >= {"generate", "chat", "fleet"}


@pytest.mark.parametrize("command", GRPCURL_COMMANDS)
def test_grpcurl(mesh: Mesh, command: str) -> None:
    assert command.count(DEFAULT_ADDRESS) == 1
    out = _shell(command.replace(DEFAULT_ADDRESS, mesh.address))
    if command.endswith(" list"):
        assert "tercet.v1.Inference" in out.split()
    elif " describe " in command:
        assert "rpc Generate " in out
    else:
        assert "Paris" in "".join(re.findall(r'"text": "(.*)"', out))


@pytest.mark.parametrize("command", CLI_COMMANDS)
def test_command_line(mesh: Mesh, command: str) -> None:
    options, typed = "", ""
    if command == "tercet chat":
        # A turn has no limit but the context, and this model does not always find an end.
        options, typed = "--temperature 0 --max-tokens 32", "What is the capital of France?\n/quit\n"
    if command == "tercet health":
        # What other tests have just asked of this mesh may have been too much for a while.
        options = "--name ready"
    out = _shell(f"{command} --address {mesh.address} {options}", typed)
    assert out.strip()
    if "France" in command + typed:
        assert "Paris" in out
    if "--json" in command:
        assert json.loads(out.splitlines()[-1])
    if command == "tercet fleet":
        assert f"127.0.0.1:{mesh.ports['worker']}" in out
