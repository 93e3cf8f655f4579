"""How gRPC's core is told to work, and that it knows what it is told."""

import os
import subprocess
import sys

import pytest

_VARIABLES = ("GRPC_EXPERIMENTS", "GRPC_VERBOSITY")
_SERVE = """
import asyncio, tercet.grpc_core
import grpc.aio

async def serve():
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await server.stop(None)

asyncio.run(serve())
"""


def _said(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    rest = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    command, env = [sys.executable, "-c", code], rest | variables
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True)


def test_grpc_knows_what_it_is_told() -> None:
    assert _said(_SERVE).stderr == ""


def test_grpc_says_what_it_does_not_know() -> None:
    assert "no_such_thing" in _said(_SERVE, GRPC_EXPERIMENTS="no_such_thing").stderr


@pytest.mark.parametrize("variable", _VARIABLES)
def test_whoever_starts_it_has_the_last_word(variable: str) -> None:
    code = f"import os, tercet.grpc_core; print(os.environ[{variable!r}])"
    assert _said(code).stdout.strip()
    assert _said(code, **{variable: "other"}).stdout == "other\n"


def test_commands_begin_with_it() -> None:
    code = "import sys, tercet.cli, grpc; print(*sys.modules)"
    names = _said(code).stdout.split()
    assert names.index("tercet.grpc_core") < names.index("grpc")
