"""The examples in other languages, which do the same: streams, deadlines, cancels, errors by their reasons."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tercet.errors import QueueFullError
from tests.e2e.conftest import ROOT, Mesh
from tests.tercet.conftest import FakeGateway

# C++ is compiled for minutes where everything else runs, too.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

EXAMPLES = ROOT / "docs" / "examples"
QUESTION = "What is the capital of France?"

# The command that asks a question: address, timeout in seconds, most tokens, question.
Command = Callable[[str, str, str, str], list[str]]


def _needs(*programs: str) -> None:
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Command:
    _needs("node", "npm")
    folder = tmp_path_factory.mktemp("node")
    shutil.copy(EXAMPLES / "node" / "package.json", folder)
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True, timeout=300)
    # The folder of a checkout is left as it is.
    found = ["env", f"NODE_PATH={folder / 'node_modules'}", "node", str(EXAMPLES / "node" / "generate.js")]
    return lambda address, timeout, tokens, question: [
        *found, "--address", address, "--timeout", timeout, "--max-tokens", tokens, question,
    ]  # fmt: skip


@pytest.fixture(scope="session")
def cpp(tmp_path_factory: pytest.TempPathFactory) -> Command:
    _needs("cmake", "c++", "pkg-config", "protoc", "grpc_cpp_plugin")
    if subprocess.run(["pkg-config", "--exists", "grpc++", "protobuf"]).returncode:
        pytest.skip("libgrpc++-dev or libprotobuf-dev not installed")
    folder = tmp_path_factory.mktemp("cpp")
    quick = ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"]
    subprocess.run(["cmake", "-S", EXAMPLES / "cpp", "-B", folder, *quick], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder, "--parallel", "2"], check=True, stdout=subprocess.DEVNULL)
    return lambda address, timeout, tokens, question: [str(folder / "generate"), question, address, timeout, tokens]


@pytest.fixture(scope="session", params=["node", "cpp"])
def command(request: pytest.FixtureRequest) -> Command:
    made: Command = request.getfixturevalue(request.param)
    return made


def _run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    # What our own processes ask of gRPC's core, other versions of it do not know, and say so.
    inherited = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    return subprocess.run(command, env=inherited | environment, capture_output=True, text=True, timeout=120)


def test_an_answer(mesh: Mesh, command: Command) -> None:
    done = _run(command(mesh.address, "60", "16", QUESTION))
    assert (done.returncode, done.stdout) == (0, "The capital of France is Paris.\n"), done.stderr
    assert done.stderr.startswith("FINISH_REASON_STOP, ")


def test_ctrl_c_cancels(mesh: Mesh, command: Command) -> None:
    story = command(mesh.address, "120", "4000", "Tell me all that you know about rivers, one after the other.")
    process = subprocess.Popen(story, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    mesh.wait_idle()


def test_a_refusal_names_its_reason_and_the_field(mesh: Mesh, command: Command) -> None:
    done = _run(command(mesh.address, "60", "0", QUESTION))
    assert done.returncode == 1
    assert done.stderr.startswith("INVALID_FIELD: ")
    assert "stop.max_tokens" in done.stderr


def test_a_refusal_says_when_to_ask_again(gateway: FakeGateway, command: Command) -> None:
    gateway.failures = [QueueFullError("full up", metadata={"queued": "7"}, retry_after_s=1.5)]
    done = _run(command(gateway.address, "60", "16", QUESTION))
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0].startswith("QUEUE_FULL: full up")
    assert "queued" in done.stderr
    assert lines[-1] == "ask again in 1.5 s"


def test_the_deadline_ends_what_takes_longer(gateway: FakeGateway, command: Command) -> None:
    done = _run(command(gateway.address, "2", "16", "forever"))
    assert done.returncode == 1
    assert "again again" in done.stdout
    assert "DEADLINE_EXCEEDED" in done.stderr or done.stderr.startswith("gRPC 4: ")
    assert gateway.cancelled.wait(10)


def test_a_key_is_sent(gateway: FakeGateway, command: Command) -> None:
    assert _run(command(gateway.address, "60", "16", "hi"), TERCET_API_KEY="tct_x").stdout == "1: hi\n"
    assert gateway.keys == ["Bearer tct_x"]


def test_no_question_is_no_request(command: Command) -> None:
    words = [word for word in command("127.0.0.1:1", "60", "16", QUESTION) if word != QUESTION]
    program = next(index for index, word in enumerate(words) if word.endswith(("generate", "generate.js")))
    done = _run(words[: program + 1])
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


def test_node_knows_a_gateway_by_its_certificate(tls_gateway: tuple[FakeGateway, Path], node: Command) -> None:
    fake, ca = tls_gateway
    done = _run([*node(fake.address, "60", "16", "hi"), "--ca", str(ca)])
    assert (done.returncode, done.stdout) == (0, "1: hi\n"), done.stderr
    assert _run(node(fake.address, "60", "16", "hi")).returncode == 1


def test_examples_are_short() -> None:
    for file in ("node/generate.js", "cpp/generate.cpp"):
        assert len((EXAMPLES / file).read_text(encoding="utf-8").splitlines()) < 150
