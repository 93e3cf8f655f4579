"""What a small model has to write, asked by OpenAI's own client from a real mesh: calls of tools, JSON by a schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import openai
import pydantic
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
    for seed in range(2):
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


class Weather(pydantic.BaseModel):
    """What `parse` reads."""

    city: Literal["Paris", "Rome"]
    rain: bool
    days: Annotated[list[int], pydantic.Field(max_length=2)]


def test_an_answer_is_of_its_class(client: openai.OpenAI) -> None:
    asked = {**ASKED, "tools": openai.omit, "response_format": Weather}
    for seed in range(2):
        made = client.chat.completions.parse(**asked, seed=seed).choices[0]
        assert isinstance(made.message.parsed, Weather)
        assert made.finish_reason == "stop"
        with client.chat.completions.stream(**asked, seed=seed) as stream:
            assert stream.get_final_completion().choices[0].message.parsed == made.message.parsed
    text = client.completions.create(
        model="", prompt="Yes or no? ", max_tokens=9, extra_body={"guided_choice": ["yes", "no"]}
    )
    assert text.choices[0].text in ("yes", "no")


def test_beside_calls_that_may_be_made_an_answer_is_of_its_class(client: openai.OpenAI) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "weather", "schema": Weather.model_json_schema()}}
    answer = client.chat.completions.create(**{**ASKED, "response_format": schema, "n": 4, "seed": 1})
    for choice in answer.choices:
        if choice.message.tool_calls:
            calls_of(answer.model_copy(update={"choices": [choice]}))
        else:
            assert isinstance(Weather.model_validate_json(choice.message.content or ""), Weather)


def test_what_cannot_be_kept_to_is_refused(client: openai.OpenAI) -> None:
    odd = {"type": "json_schema", "json_schema": {"name": "odd", "schema": {"not": {}}}}
    for wrong, field in (
        ({"response_format": odd, "tools": openai.omit}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
          "tool_choice": "required"}, "tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "gone"}}}, "tool_choice"),
    ):  # fmt: skip
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**{**ASKED, **wrong})
        assert caught.value.param == field
