"""Clients that are not ours: grpcurl without any .proto file, and Node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import ROOT, Mesh

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


def test_grpcurl_streams_a_generation(mesh: Mesh) -> None:
    request = {
        "prompt": "Once upon a time",
        "sampling": {"temperature": 0},
        "stop": {"max_tokens": 8, "ignore_eos": True},
    }
    events = _events(_grpcurl("-d", json.dumps(request), mesh.address, "tercet.v1.Inference/Generate"))
    assert "accepted" in events[0]
    assert events[-1]["finished"]["outputs"][0]["reason"] == "FINISH_REASON_LENGTH"
    assert events[-1]["finished"]["usage"]["completion_tokens"] == 8
    assert sum(len(event["delta"]["token_ids"]) for event in events[1:-1]) == 8


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


def test_grpcurl_sees_a_typed_error(mesh: Mesh) -> None:
    request = json.dumps({"prompt": "x", "model": "nobody"})
    done = subprocess.run(
        [GRPCURL, "-plaintext", "-d", request, mesh.address, "tercet.v1.Inference/GenerateOnce"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "NotFound" in done.stderr
    assert "MODEL_NOT_FOUND" in done.stderr


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the Node client and what it needs."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: the Node client is not tried")
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "generate.js"):
        shutil.copy(ROOT / "tests" / "e2e" / "node" / name, folder)
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True, timeout=240)
    return folder


def test_node_client_streams_and_cancels(mesh: Mesh, node_folder: Path) -> None:
    done = subprocess.run(
        ["node", "generate.js", mesh.address, str(ROOT / "proto")],
        cwd=node_folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["events"][0] == "accepted"
    assert result["events"][-1] == "finished"
    assert result["tokens"] == 8
    assert result["text"]
    assert result["outputs"] == {"tokens": [8, 8], "ends": [0, 1]}
    assert result["cancelled"] == 1  # grpc.status.CANCELLED
    assert result["refused"] == {"code": 3, "hasDetails": True}  # INVALID_ARGUMENT
    mesh.wait_idle()
