"""Structured output through three real processes and the embedded model."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tercet import errors
from tercet.client import AsyncClient as Client
from tercet.messages import ChatMessage, Tool
from tests.e2e.conftest import Mesh, wait_until

pytestmark = pytest.mark.e2e

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
}

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 10}}, "required": ["city"]}
DIGITS = {"type": "integer", "minimum": 0, "maximum": 99}
SUM = {"type": "object", "properties": {"a": DIGITS, "b": DIGITS}, "required": ["a", "b"]}


async def test_every_form(client: Client) -> None:
    hot = {"temperature": 1.5, "max_tokens": 200}
    for seed in range(3):
        answer = await client.generate("Now: ", regex=r"[a-c]{3}-\d{2}(é|!)", seed=seed, **hot).answer()
        assert re.fullmatch(r"[a-c]{3}-\d{2}(é|!)", answer.text)
    answer = await client.generate("Now: ", choice=('a "b"', "\n\\", "ü€"), n=4, seed=3, **hot).answer()
    assert {output.text for output in answer.outputs} <= {'a "b"', "\n\\", "ü€"}
    answer = await client.generate("Now: ", ebnf='root ::= "x" root "y" | "z"', seed=1, **hot).answer()
    text = answer.text.replace("x", "").replace("y", "")
    assert text in ("z", "")
    cold = {"temperature": 0.0, "max_tokens": 60}
    answer = await client.generate("As JSON: Mike is 25 years old.", json_schema=json.dumps(PERSON), **cold).answer()
    found = json.loads(answer.text)
    assert found.keys() == {"name", "age"}
    assert len(found["name"]) <= 12
    answer = await client.generate("An empty object: ", json_object=True, temperature=0.0, max_tokens=200).answer()
    assert answer.outputs[0].finish_reason == "length" or isinstance(json.loads(answer.text), dict)


async def test_streamed_at_once_and_beside_others_it_is_the_same(client: Client) -> None:
    options = {"json_schema": json.dumps(PERSON), "temperature": 1.0, "max_tokens": 80}
    texts = [(await client.generate_once("Who? ", seed=seed, **options)).text for seed in range(6)]
    others = [client.generate("Once upon a time", max_tokens=40, temperature=0.0).answer() for _ in range(4)]
    answers = await asyncio.gather(*(client.generate("Who? ", seed=s, **options).answer() for s in range(6)), *others)
    assert [answer.text for answer in answers[:6]] == texts
    assert len({answer.text for answer in answers[6:]}) == 1


async def test_length_cuts_it(client: Client) -> None:
    answer = await client.generate("Count: ", regex=r"[0-9]{50}", temperature=1.0, max_tokens=5).answer()
    assert answer.outputs[0].finish_reason == "length"
    assert re.fullmatch(r"[0-9]{1,50}", answer.text)


async def test_a_bad_grammar_fails_its_request_alone(client: Client) -> None:
    good = client.generate("Once upon a time", max_tokens=30, temperature=0.0).answer()
    for options in ({"regex": "(a"}, {"ebnf": "root ::= x"}, {"json_schema": '{"multipleOf": 2}'}):
        with pytest.raises(errors.InvalidFieldError) as caught:
            await client.generate("x", **options).answer()
        assert caught.value.metadata["field"].startswith("structured_output")
    assert (await good).text


async def test_what_the_worker_s_process_dies_of_goes_on(mesh: Mesh, client: Client) -> None:
    """Its texts are opened anew in another one."""
    options = {"regex": r"[a-z ]{40,}", "temperature": 1.0, "seed": 4, "max_tokens": 150}
    want = (await client.generate("Say: ", **options).answer()).text
    running = asyncio.ensure_future(client.generate("Say: ", **options).answer())
    await asyncio.sleep(0.3)
    (child,) = children_of(mesh._processes["worker"].pid)
    os.kill(child, signal.SIGKILL)
    assert (await running).text == want
    wait_until(lambda: child not in children_of(mesh._processes["worker"].pid), "it is gone")


def children_of(pid: int) -> list[int]:
    """Processes that follow grammars for a service."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            command = Path(f"/proc/{child}/cmdline")
            if command.exists() and b"tercet.grammar.child" in command.read_bytes():
                found.append(int(child))
    return found


async def test_tools_that_have_to_be_called(own_mesh: Callable[..., Mesh], tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for tool in tools %}{{ tool | tojson }}<tool_call>{% endfor %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    )
    mesh = own_mesh(TERCET_MODEL_CHAT_TEMPLATE=str(template), TERCET_MODEL_TOOL_PARSER="hermes")
    mesh.start()
    tools = (Tool("get_weather", "How it is", json.dumps(CITY)), Tool("add", "", json.dumps(SUM)))
    options = {"tools": tools, "max_tokens": 150, "temperature": 1.0}
    async with Client(mesh.address) as client:
        asked = [ChatMessage("user", "What is the weather in Paris?")]
        answer = await client.generate(
            asked, tool_choice="required", parallel_tool_calls=False, seed=1, **options
        ).answer()
        (call,) = answer.tool_calls
        assert answer.text == ""
        assert call.name in ("get_weather", "add")
        assert json.loads(call.arguments).keys() == (CITY if call.name == "get_weather" else SUM)["properties"].keys()
        assert answer.outputs[0].finish_reason == "tool_calls"
        for seed in range(3):
            answer = await client.generate(asked, forced_tool="add", seed=seed, **options).answer()
            (call,) = answer.tool_calls
            assert call.name == "add"
            found = json.loads(call.arguments)
            assert all(isinstance(found[name], int) and 0 <= found[name] < 100 for name in ("a", "b"))
        with pytest.raises(errors.InvalidFieldError) as caught:
            await client.generate(asked, forced_tool="sing", **options).answer()
        assert caught.value.metadata["field"] == "chat.forced_tool"
