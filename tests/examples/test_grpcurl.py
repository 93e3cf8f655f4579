"""The commands of the examples' page, as written: every call of the public contract."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2

from tercet.client import DEFAULT_ADDRESS
from tercet.v1 import inference_pb2, models_pb2, operations_pb2
from tests.e2e.conftest import ROOT, Mesh

pytestmark = pytest.mark.e2e

PAGE = (ROOT / "docs" / "examples" / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^grpcurl .*$", PAGE, re.MULTILINE)
CALLS = {command.split()[-1]: command for command in COMMANDS if "/" in command.split()[-1]}
FILES = (inference_pb2, models_pb2, operations_pb2, health_pb2)

# Beside the interpreter: a dev dependency ships it.
GRPCURL = shutil.which("grpcurl", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or "grpcurl"

Messages = list[dict[str, Any]]


def _run(command: str, mesh: Mesh) -> subprocess.CompletedProcess[str]:
    assert command.count(DEFAULT_ADDRESS) == 1
    words = shlex.split(command.replace(DEFAULT_ADDRESS, mesh.address))
    return subprocess.run([GRPCURL, *words[1:]], capture_output=True, text=True, timeout=120)


def _messages(out: str) -> Messages:
    """What grpcurl prints: one JSON object after the other."""
    decoder, found, rest = json.JSONDecoder(), [], out.strip()
    while rest:
        message, end = decoder.raw_decode(rest)
        found.append(message)
        rest = rest[end:].lstrip()
    return found


def _is_stream(events: Messages) -> bool:
    tokens = sum(len(event["delta"]["token_ids"]) for event in events[1:-1])
    return "accepted" in events[0] and tokens == events[-1]["finished"]["usage"]["completion_tokens"] == 8


def _is_plan_log(parts: Messages) -> bool:
    return b"".join(base64.b64decode(part["data"]) for part in parts).startswith(b"{")


# Whether the answers are what was asked for.
CHECKS: dict[str, Callable[[Messages], bool]] = {
    "tercet.v1.Inference/Generate": _is_stream,
    "tercet.v1.Inference/GenerateOnce": lambda found: "Paris" in found[0]["outputs"][0]["text"],
    "tercet.v1.Inference/Tokenize": lambda found: found[0]["text"] == "Once upon a time" and found[0]["token_ids"],
    "tercet.v1.Inference/Detokenize": lambda found: bool(found[0]["text"]),
    "tercet.v1.Models/ListModels": lambda found: found[0]["models"][0]["ready"],
    "tercet.v1.Models/GetModel": lambda found: found[0]["vocab_size"] > 0 and found[0]["chat"],
    "tercet.v1.Operations/GetFleet": lambda found: [worker["live"] for worker in found[0]["workers"]] == [True],
    "tercet.v1.Operations/GetTraffic": lambda found: (
        "interactive" in {each.get("name") for each in found[0]["classes"]}
    ),
    # There is no such request, and what is false is left out.
    "tercet.v1.Operations/CancelGeneration": lambda found: found == [{}],
    "tercet.v1.Operations/ListCancellations": lambda found: len(found[0].get("cancellations", [])) <= 10,
    "tercet.v1.Operations/DumpPlanLog": _is_plan_log,
    "grpc.health.v1.Health/Check": lambda found: found == [{"status": "SERVING"}],
    "grpc.health.v1.Health/List": lambda found: found[0]["statuses"]["ready"] == {"status": "SERVING"},
    "grpc.health.v1.Health/Watch": lambda found: found[0] == {"status": "SERVING"},
}


def test_every_call_of_the_contract_is_shown_and_tried() -> None:
    methods = {
        f"{service.full_name}/{method.name}"
        for file in FILES
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert set(CALLS) == set(CHECKS) == methods


@pytest.mark.parametrize("call", CALLS)
def test_the_answer_is_what_was_asked_for(mesh: Mesh, call: str) -> None:
    done = _run(CALLS[call], mesh)
    if call.endswith("/Watch"):
        # It never ends by itself.
        assert "DeadlineExceeded" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
    found = _messages(done.stdout)
    assert CHECKS[call](found), found


def test_reflection_lists_and_describes(mesh: Mesh) -> None:
    listed, described = (_run(command, mesh) for command in COMMANDS if command not in CALLS.values())
    assert {call.split("/")[0] for call in CALLS} < set(listed.stdout.split())
    assert "message GenerateRequest" in described.stdout
    for name in ("prompt", "sampling", "cache_salt"):
        assert f" {name} = " in described.stdout


def test_a_refusal_has_its_reason(mesh: Mesh) -> None:
    command = CALLS["tercet.v1.Models/GetModel"].replace("SmolLM2-135M-Instruct.Q4_1", "nobody")
    done = _run(command, mesh)
    assert done.returncode != 0
    assert "NotFound" in done.stderr
    assert "MODEL_NOT_FOUND" in done.stderr
