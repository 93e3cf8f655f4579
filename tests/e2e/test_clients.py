"""grpcurl at every service without any .proto file; tests/examples has the public calls, and other languages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import Mesh

pytestmark = pytest.mark.e2e


# Beside the interpreter: a dev dependency ships it.
GRPCURL = shutil.which("grpcurl", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or "grpcurl"


def _grpcurl(*arguments: str) -> str:
    done = subprocess.run([GRPCURL, "-plaintext", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("service", "full_name"),
    [
        ("gateway", "tercet.v1.Inference"),
        ("scheduler", "tercet.mesh.v1.Scheduler"),
        ("worker", "tercet.mesh.v1.Worker"),
    ],
)
def test_grpcurl_lists_describes_and_probes_every_service(mesh: Mesh, service: str, full_name: str) -> None:
    address = f"127.0.0.1:{mesh.ports[service]}"
    listed = _grpcurl(address, "list").split()
    assert {full_name, "grpc.health.v1.Health"} <= set(listed)
    assert "rpc" in _grpcurl(address, "describe", full_name)
    health = json.loads(_grpcurl("-d", json.dumps({"service": full_name}), address, "grpc.health.v1.Health/Check"))
    assert health == {"status": "SERVING"}


def _events(out: str) -> list[dict[str, Any]]:
    """The messages of a stream, which grpcurl prints one after the other."""
    decoder, events, rest = json.JSONDecoder(), [], out.strip()
    while rest:
        event, end = decoder.raw_decode(rest)
        events.append(event)
        rest = rest[end:].lstrip()
    return events


def test_grpcurl_streams_two_outputs(mesh: Mesh) -> None:
    request = {
        "prompt": "Once upon a time",
        "sampling": {"seed": 7, "n": 2},
        "stop": {"max_tokens": 6, "ignore_eos": True},
    }
    events = _events(_grpcurl("-d", json.dumps(request), mesh.address, "tercet.v1.Inference/Generate"))
    deltas = [event["delta"] for event in events[1:-1]]
    for index in (0, 1):
        # What is 0 is left out of JSON.
        assert sum(len(delta["token_ids"]) for delta in deltas if delta.get("output_index", 0) == index) == 6
    ends = events[-1]["finished"]["outputs"]
    assert [(end.get("output_index", 0), end["reason"]) for end in ends] == [
        (0, "FINISH_REASON_LENGTH"), (1, "FINISH_REASON_LENGTH"),
    ]  # fmt: skip
