"""LangChain's chat model for OpenAI's API, as it comes from PyPI, apart since it brings a plugin of pytest."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.served_model import ServedModel, load_model
from tercet.sections import ModelSettings

from ..calling_model import answering_in_turn, write_calling_model

PACKAGE = "langchain-openai>=1,<2"
PROGRAM = Path(__file__).with_name("client_langchain.py")
WEATHER = '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Zürich"}}]'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it is installed."""
    path = tmp_path_factory.mktemp("langchain")
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--only-binary",
        ":all:",
        "--target",
        str(path),
        PACKAGE,
    ]
    done = subprocess.run(install, capture_output=True, text=True, timeout=280)
    if done.returncode:
        pytest.skip(f"pip cannot install {PACKAGE}: {done.stderr[-300:]}")
    return path


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_calling_model(tmp_path_factory.mktemp("models") / "calls")


@pytest.fixture(scope="module")
def model(model_path: Path) -> ServedModel:
    return load_model(ModelSettings(model=str(model_path), served_model_name=("bytes", "alias")))


async def test_it_asks_streams_and_calls(gateway, scheduler, model, folder, http_port):
    answering_in_turn(scheduler, model, "hello", "hello", WEATHER, WEATHER, "No.", '{"city": "Rome"}')
    env = {**os.environ, "PYTHONPATH": str(folder), "BASE_URL": f"http://127.0.0.1:{http_port}/v1"}
    program = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, problems = await asyncio.wait_for(program.communicate(), 120)
    assert program.returncode == 0, problems.decode()
    assert json.loads(out) == {
        "once": ["hello", "stop", 2],
        "streamed": "hello",
        "calls": 2 * [["weather", {"city": "Zürich"}]],
        "answer": "No.",
        "place": {"city": "Rome"},
    }
    assert "sunny in Zürich" in model.tokenizer.decode(list(scheduler.sequences[-2].submit.prompt_token_ids))
