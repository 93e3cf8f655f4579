"""A service's process, from its settings to its end."""

from __future__ import annotations

import subprocess
import sys

# A service that ends at once, and is told to stop when it has.
TOLD_AT_THE_END = """
import os, signal, types
from tercet.cli import services
from tercet.sections import MeshConfig

async def serve(config, ready):
    pass

services.service_module = lambda name: types.SimpleNamespace(serve=serve)
services.run_service("scheduler", MeshConfig())
for number in (signal.SIGTERM, signal.SIGINT):
    os.kill(os.getpid(), number)
print("over")
"""


def test_one_that_is_told_to_stop_when_all_is_done_ends_well() -> None:
    ended = subprocess.run([sys.executable, "-c", TOLD_AT_THE_END], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "over\n"), ended.stderr
