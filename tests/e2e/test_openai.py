"""OpenAI's HTTP API of a real mesh: what its page tells to type, the same text as over gRPC, and nothing left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import openai
import pytest

from tercet.v1 import inference_pb2 as pb
from tercet.v1 import inference_pb2_grpc

from .conftest import ROOT, Mesh, free_port

pytestmark = pytest.mark.e2e

PAGE = (ROOT / "docs" / "openai.md").read_text(encoding="utf-8")
STORY = "Once upon a time"


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Mesh]:
    running = Mesh(tmp_path_factory.mktemp("openai"), {"TERCET_GATEWAY_HTTP_PORT": str(port)})
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture
def client(mesh: Mesh, port: int) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made
    mesh.wait_idle()


def over_grpc(mesh: Mesh, **fields: Any) -> pb.GenerateResult:
    with grpc.insecure_channel(mesh.address) as channel:
        return inference_pb2_grpc.InferenceStub(channel).GenerateOnce(pb.GenerateRequest(**fields), timeout=60)


@pytest.mark.parametrize("stream", [False, True])
def test_the_same_seed_gives_the_same_text(mesh: Mesh, client: openai.OpenAI, stream: bool) -> None:
    same = over_grpc(mesh, prompt=STORY, sampling=pb.SamplingParams(seed=7, n=2), stop=pb.StopConditions(max_tokens=24))
    answer = client.completions.create(model="", prompt=STORY, seed=7, n=2, max_tokens=24, stream=stream)
    texts = ["", ""]
    for part in answer if stream else [answer]:
        for choice in part.choices:
            texts[choice.index] += choice.text
    assert texts == [output.text for output in same.outputs]
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="Name three rivers.")])
    same = over_grpc(mesh, chat=chat, sampling=pb.SamplingParams(seed=7), stop=pb.StopConditions(max_tokens=24))
    said = client.chat.completions.create(
        model="", messages=[{"role": "user", "content": "Name three rivers."}], seed=7, max_tokens=24
    )
    assert said.choices[0].message.content == same.outputs[0].text


def test_many_streams_and_some_that_are_left(mesh: Mesh, client: openai.OpenAI) -> None:
    def ask(index: int) -> str:
        stream = client.completions.create(model="", prompt=f"{STORY} {index}", max_tokens=16, stream=True, seed=index)
        text = ""
        for chunk in stream:
            text += chunk.choices[0].text
            if index % 4 == 0:
                stream.close()
                return ""
        return text

    with ThreadPoolExecutor(16) as threads:
        texts = list(threads.map(ask, range(32)))
    assert all(text or index % 4 == 0 for index, text in enumerate(texts))


def test_a_stream_that_takes_too_long_is_left(mesh: Mesh, client: openai.OpenAI) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.completions.create(model="", prompt=STORY, max_tokens=2000, timeout=0.3, extra_body={"ignore_eos": True})


def test_the_page_is_true(mesh: Mesh, port: int) -> None:
    (curl,) = re.findall(r"^(curl .*?\}')$", PAGE, re.MULTILINE | re.DOTALL)
    body = re.search(r"-d '(.*)'$", curl, re.DOTALL)
    assert body is not None
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
        said = client.chat.completions.create(model="", **json.loads(body.group(1)))
    assert "Paris" in (said.choices[0].message.content or "")
    # The other one is about tools, which this model has not.
    example, _ = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    program = example.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
    assert len(done.stdout) > 10
