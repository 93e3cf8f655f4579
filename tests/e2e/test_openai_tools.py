"""Tools of a real mesh over HTTP: a small model that has to call does, with arguments that its schema allows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from .conftest import Mesh, free_port

pytestmark = pytest.mark.e2e

# What Hermes and Qwen have, for a model that has never seen it.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
Call functions as <tool_call>{"name": ..., "arguments": ...}</tool_call>. There are: {{ tools | tojson }}<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor -%}
<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CITIES = ["Paris", "Rome"]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": CITIES}, "rain": {"type": "boolean"}},
    "required": ["city", "rain"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
ASKED: dict[str, Any] = {
    "model": "", "messages": [{"role": "user", "content": "Is it raining in Rome?"}], "tools": TOOLS, "max_tokens": 200,
}  # fmt: skip
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Mesh]:
    folder = tmp_path_factory.mktemp("tools")
    (folder / "chat.jinja").write_text(TEMPLATE, encoding="utf-8")
    settings = {"TERCET_GATEWAY_HTTP_PORT": str(port), "TERCET_MODEL_CHAT_TEMPLATE": str(folder / "chat.jinja")}
    running = Mesh(folder, settings)
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


def calls_of(answer: Any) -> list[tuple[str, Any]]:
    """Names and arguments; every call is whole, and one of the tools."""
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert not choice.message.content
    made = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    for name, arguments in made:
        if name == "weather":
            assert arguments.keys() == {"city", "rain"}
            assert arguments["city"] in CITIES
            assert isinstance(arguments["rain"], bool)
        else:
            assert (name, arguments) == ("now", {})
    return made


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_what_has_to_be_called_is(client: openai.OpenAI, choice: Any) -> None:
    for seed in range(3):
        asked = {**ASKED, "tool_choice": choice, "seed": seed, "parallel_tool_calls": False}
        made = calls_of(client.chat.completions.create(**asked))
        assert len(made) == 1
        assert choice == "required" or made[0][0] == "weather"
        with client.chat.completions.stream(**asked) as stream:
            assert calls_of(stream.get_final_completion()) == made


def test_a_result_goes_back(client: openai.OpenAI) -> None:
    asked = {**ASKED, "tool_choice": NAMED, "parallel_tool_calls": False}
    said = client.chat.completions.create(**asked).choices[0].message
    (call,) = said.tool_calls or ()
    turns = [*ASKED["messages"], said, {"role": "tool", "tool_call_id": call.id, "content": "It is."}]
    answer = client.chat.completions.create(**{**ASKED, "messages": turns, "tool_choice": "none", "max_tokens": 16})
    assert answer.choices[0].message.content


def test_calls_that_may_be_made_or_not(client: openai.OpenAI) -> None:
    """Whatever such a model writes, it is text, or calls that are whole."""
    answer = client.chat.completions.create(**{**ASKED, "n": 4, "seed": 1, "max_tokens": 60})
    for choice in answer.choices:
        calls = choice.message.tool_calls or ()
        assert choice.message.content or calls
        if choice.finish_reason == "tool_calls":
            assert all(isinstance(json.loads(call.function.arguments), dict) for call in calls)
