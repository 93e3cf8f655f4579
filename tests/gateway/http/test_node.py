"""OpenAI's own client for JavaScript, as it comes from npm."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway.served_model import ServedModel, load_model
from tercet.sections import ModelSettings

from ..calling_model import answering_in_turn, write_calling_model

PACKAGE = "openai@7"
PROGRAM = Path(__file__).with_name("client.mjs")
WEATHER = '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Zürich 🙂"}}]'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the client is installed, and the program beside it."""
    path = tmp_path_factory.mktemp("node")
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(path), PACKAGE]
    done = subprocess.run(install, cwd=path, capture_output=True, text=True, timeout=180)
    if done.returncode:
        pytest.skip(f"npm cannot install {PACKAGE}: {done.stderr[-300:]}")
    shutil.copy(PROGRAM, path)
    return path


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_calling_model(tmp_path_factory.mktemp("models") / "calls")


@pytest.fixture(scope="module")
def model(model_path: Path) -> ServedModel:
    return load_model(ModelSettings(model=str(model_path), served_model_name=("bytes", "alias")))


async def run(folder: Path, http_port: int, part: str) -> Any:
    """What a part of the program prints."""
    url = f"http://127.0.0.1:{http_port}/v1"
    program = await asyncio.create_subprocess_exec(
        "node", PROGRAM.name, part, cwd=folder, env={**os.environ, "BASE_URL": url},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, problems = await asyncio.wait_for(program.communicate(), 60)
    assert program.returncode == 0, problems.decode()
    return json.loads(out)


async def test_at_once_and_streamed(gateway, scheduler, model, folder, http_port):
    answering_in_turn(scheduler, model, "hello, 世界 🙂", "hello, 世界 🙂")
    assert await run(folder, http_port, "chat") == {
        "once": "hello, 世界 🙂",
        "streamed": "hello, 世界 🙂",
        "end": "stop",
    }


async def test_tools_are_called_until_there_is_an_answer(gateway, scheduler, model, folder, http_port):
    answering_in_turn(scheduler, model, WEATHER, "No.", WEATHER)
    made = await run(folder, http_port, "tools")
    assert made == {"asked": [{"city": "Zürich 🙂"}], "answer": "No.", "streamed": '{"city": "Zürich 🙂"}'}
    assert "sunny" in model.tokenizer.decode(list(scheduler.sequences[1].submit.prompt_token_ids))


async def test_errors_are_its_own(gateway, folder, http_port):
    assert await run(folder, http_port, "errors") == ["NotFoundError model_not_found", "BadRequestError top_p"]


async def test_a_stream_that_is_left_cancels(gateway, scheduler, model, folder, http_port):
    async def play(sequence: Any) -> None:
        await sequence.tokens(*model.tokenizer.encode("hello", add_bos=False))
        await sequence.cancelled.wait()

    scheduler.play = play
    assert await run(folder, http_port, "leave") == "hello"
    await asyncio.wait_for(scheduler.sequences[0].cancelled.wait(), 10)
