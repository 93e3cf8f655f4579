"""Any JSON at all, sent to the HTTP port of a real gateway: each call is answered, none with a bug's status, and all go
on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..e2e.conftest import Mesh, free_port

pytestmark = pytest.mark.e2e

SECONDS = float(os.environ.get("FUZZ_SECONDS", "1"))
HANG_S = 60.0
EXAMPLES = settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
PATHS = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/embeddings"]

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=30),
    st.sampled_from(["user", "system", "\ud800", "", "text", "json_object", "auto", "none", "model"]),
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
NAMES = [
    "model", "prompt", "messages", "temperature", "top_p", "top_k", "min_p", "seed", "n", "best_of", "logit_bias",
    "repetition_penalty", "frequency_penalty", "presence_penalty", "allowed_token_ids", "logprobs", "top_logprobs",
    "max_completion_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "stream", "stream_options", "echo",
    "suffix", "tools", "tool_choice", "parallel_tool_calls", "documents", "chat_template_kwargs", "user",
    "response_format", "structured_outputs", "guided_json", "guided_regex", "metadata", "priority", "cache_salt",
    "tokens", "add_generation_prompt", "continue_final_message", "include_stop_str_in_output", "frobnicate",
]  # fmt: skip
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool"]), "content": st.text(max_size=20) | VALUES},
        optional={"name": st.text(max_size=3), "tool_calls": VALUES},
    ),
    max_size=4,
)
PROMPTS = st.text(max_size=20) | st.lists(st.text(max_size=5), max_size=3) | st.lists(st.integers(0, 99), max_size=5)
# What could be answered, and something beside it that may be wrong.
NEARLY_RIGHT = st.tuples(
    st.fixed_dictionaries(
        {}, optional={"prompt": PROMPTS, "messages": MESSAGES, "tokens": st.lists(st.integers(0, 9))}
    ),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3),
).map(lambda both: both[1] | both[0])


def fuzz(body: Callable[[st.DataObject], None]) -> None:
    """Calls `body` with other data again and again, for SECONDS."""
    ends_at = time.monotonic() + SECONDS
    while time.monotonic() < ends_at:
        EXAMPLES(given(st.data())(body))()


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Mesh]:
    running = Mesh(tmp_path_factory.mktemp("fuzz"), {"TERCET_GATEWAY_HTTP_PORT": str(port)})
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def http(mesh: Mesh, port: int) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANG_S) as client:
        yield client


@pytest.fixture
def unharmed(mesh: Mesh, http: httpx2.Client) -> Iterator[None]:
    """After it the mesh is as before: the same processes, nothing running, no bug told, and answers."""
    pids = {name: mesh.pid(name) for name in mesh.ports}
    yield
    mesh.wait_idle(60.0)
    assert {name: mesh.pid(name) for name in mesh.ports} == pids
    for event in ("handler_failed", "gateway_stream_failed", "books_do_not_balance", "executor_died", "step_failed"):
        assert not [record for name in mesh.ports for record in mesh.records(name, event)]
    assert "Traceback" not in mesh.logs()
    assert http.post("/v1/completions", json={"prompt": "Once", "max_tokens": 4}).status_code == 200


def send(http: httpx2.Client, path: str, body: Any) -> None:
    """Fails for a call that hangs, ends in what no client can be blamed for, or is not what it says."""
    if isinstance(body, dict):
        # What a call of everything would take too long with.
        body = {**body, "max_tokens": 4}
    data = json.dumps(body).encode()
    answer = http.post(path, content=data, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400, 404, 429), f"{path} {data!r}: {answer.status_code} {answer.text}"
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["message"]
    elif answer.headers["content-type"].startswith("text/event-stream"):
        *events, last, rest = answer.text.split("\n\n")
        assert rest == ""
        assert last == "data: [DONE]"
        choices = [choice for event in events for choice in json.loads(event.removeprefix("data: "))["choices"]]
        ended = [choice["index"] for choice in choices if choice["finish_reason"] is not None]
        assert sorted(ended) == sorted({choice["index"] for choice in choices})
    else:
        assert isinstance(answer.json(), dict)


def test_any_json(http: httpx2.Client, unharmed: None) -> None:
    @fuzz
    def _(data: st.DataObject) -> None:
        send(http, data.draw(st.sampled_from(PATHS)), data.draw(VALUES))


def test_requests_that_are_nearly_right(http: httpx2.Client, unharmed: None) -> None:
    @fuzz
    def _(data: st.DataObject) -> None:
        send(http, data.draw(st.sampled_from(PATHS)), data.draw(NEARLY_RIGHT))
