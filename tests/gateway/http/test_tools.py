"""Tools over HTTP with OpenAI's own client: what is asked is what gRPC asks, and calls come back in OpenAI's shapes."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.served_model import ServedModel, load_model
from tercet.errors import InvalidFieldError
from tercet.failure import failure_to_proto
from tercet.mesh.v1 import sequence_pb2
from tercet.sections import ModelSettings
from tercet.v1 import inference_pb2 as pb

from ..calling_model import answering, answering_in_turn, write_calling_model

PAGE = (Path(__file__).parents[3] / "docs" / "openai.md").read_text(encoding="utf-8")

USER = {"role": "user", "content": "Is it raining?"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "What it is like", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
ARGUMENTS = '{"city": "Zürich 🙂"}'
WEATHER = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
NOW = '{"name": "now", "arguments": {}}'
ANSWER = f"Well. [TOOL_CALLS][{WEATHER}, {NOW}]"


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_calling_model(tmp_path_factory.mktemp("models") / "calls")


@pytest.fixture(scope="module")
def model(model_path: Path) -> ServedModel:
    return load_model(ModelSettings(model=str(model_path), served_model_name=("bytes", "alias")))


def told(calls: Any) -> list[tuple[str, str, str]]:
    return [(call.type, call.function.name, call.function.arguments) for call in calls]


CALLS = [("function", "weather", ARGUMENTS), ("function", "now", "{}")]


async def test_a_whole_chat_is_what_grpc_asks(gateway, http, scheduler):
    body = {
        "model": "alias", "seed": 5, "max_tokens": 9,
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
            {"role": "user", "content": "Weather?", "name": "Ada"},
            {"role": "assistant", "content": None, "refusal": None, "annotations": [], "tool_calls": [
                {"id": "abcdefgh1", "type": "function", "index": 0,
                 "function": {"name": "weather", "arguments": ARGUMENTS}},
            ]},
            {"role": "tool", "tool_call_id": "abcdefgh1", "name": "weather", "content": "sunny"},
            {"role": "assistant", "content": "It is"},
        ],
        "tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": False,
        "documents": [{"title": "t", "text": "é\u0000"}], "chat_template_kwargs": {"mood": [1, None, "x"]},
        "continue_final_message": True, "add_generation_prompt": False,
    }  # fmt: skip
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-tercet-ignored"] == "messages.tool_calls.index"
    chat = pb.Chat(
        messages=[
            pb.ChatMessage(role="developer", content="Be\nbrief."),
            pb.ChatMessage(role="user", content="Weather?", name="Ada"),
            pb.ChatMessage(
                role="assistant", tool_calls=[pb.ToolCall(id="abcdefgh1", name="weather", arguments=ARGUMENTS)]
            ),
            pb.ChatMessage(role="tool", content="sunny", tool_call_id="abcdefgh1", name="weather"),
            pb.ChatMessage(role="assistant", content="It is"),
        ],
        tools=[
            pb.Tool(name="weather", description="What it is like", parameters=json.dumps(SCHEMA)),
            pb.Tool(name="now"),
        ],
        parallel_tool_calls=False,
        documents=[json.dumps({"title": "t", "text": "é\u0000"})],
        template_kwargs=json.dumps({"mood": [1, None, "x"]}),
        continue_final_message=True,
    )
    await gateway.inference.GenerateOnce(
        pb.GenerateRequest(chat=chat, sampling=pb.SamplingParams(seed=5), stop=pb.StopConditions(max_tokens=9))
    )
    by_http, by_grpc = (sequence.submit for sequence in scheduler.sequences)
    for submit in (by_http, by_grpc):
        submit.request_id, submit.request_key = "", 0
    assert by_http == by_grpc
    tokens = await http.post("/tokenize", json={name: body[name] for name in body.keys() - {"seed", "max_tokens"}})
    assert tokens.json()["tokens"] == list(by_grpc.prompt_token_ids)
    assert tokens.headers["x-tercet-ignored"] == "messages.tool_calls.index"


async def test_calls_at_once(client, scheduler, model):
    answering(scheduler, model, ANSWER)
    made = await client.chat.completions.create(model="bytes", messages=[USER], tools=TOOLS)
    (choice,) = made.choices
    assert told(choice.message.tool_calls) == CALLS
    assert (choice.message.content, choice.finish_reason) == ("Well. ", "tool_calls")
    answering(scheduler, model, ANSWER.removeprefix("Well. "))
    (choice,) = (await client.chat.completions.create(model="bytes", messages=[USER], tools=TOOLS)).choices
    assert choice.message.content is None


async def test_calls_in_events(client, scheduler, model, events):
    answering(scheduler, model, ANSWER)
    async with client.chat.completions.stream(model="bytes", messages=[USER], tools=TOOLS) as stream:
        kinds = {event.type async for event in stream}
        (choice,) = (await stream.get_final_completion()).choices
    assert told(choice.message.tool_calls) == CALLS
    assert (choice.message.content, choice.finish_reason) == ("Well. ", "tool_calls")
    assert {"content.delta", "tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    *pieces, done = await events("/v1/chat/completions", {"messages": [USER], "tools": TOOLS})
    assert done == "[DONE]"
    deltas = [piece["choices"][0]["delta"] for piece in pieces]
    # An event without anything is the end alone.
    assert [index for index, delta in enumerate(deltas) if not delta] == [len(deltas) - 1]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    first = {call["index"]: call for call in reversed(calls)}
    for call in calls:
        wanted = {"index", "id", "type", "function"} if call is first[call["index"]] else {"index", "function"}
        assert call.keys() == wanted
    assert len(calls) > 5
    assert first[0]["id"] != first[1]["id"]
    assert not any("content" in delta for delta in deltas if "tool_calls" in delta)


async def test_logprobs_are_those_of_all_tokens(client, scheduler, model):
    ids = answering(scheduler, model, ANSWER)
    asked = {"model": "bytes", "messages": [USER], "tools": TOOLS, "logprobs": True}
    (choice,) = (await client.chat.completions.create(**asked)).choices
    assert len(choice.logprobs.content) == len(ids)
    pieces = [each async for each in await client.chat.completions.create(**asked, stream=True)]
    shown = [each.choices[0].logprobs.content for each in pieces if each.choices[0].logprobs is not None]
    assert [token.token for part in shown for token in part] == [each.token for each in choice.logprobs.content]


async def test_results_go_back_until_there_is_an_answer(client, scheduler, model):
    turns: list[Any] = [USER]
    tools = {"weather": lambda city: f"sunny in {city}", "now": lambda: "12:00"}
    answering_in_turn(scheduler, model, ANSWER, f"[TOOL_CALLS][{NOW}]", "No.")
    for _ in range(3):
        (choice,) = (await client.chat.completions.create(model="bytes", messages=turns, tools=TOOLS)).choices
        turns.append(choice.message)
        for call in choice.message.tool_calls or ():
            result = tools[call.function.name](**json.loads(call.function.arguments))
            turns.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert (choice.message.content, choice.finish_reason) == ("No.", "stop")
    decoded = [model.tokenizer.decode(list(each.submit.prompt_token_ids)) for each in scheduler.sequences]
    assert "sunny in Zürich 🙂" in decoded[1]
    assert decoded[2].count("12:00") == 2


async def test_the_page_is_true(gateway, scheduler, model, http_port):
    example = re.search(r"^```python\n(.*?)^```", PAGE.partition("\n## Tools\n")[2], re.MULTILINE | re.DOTALL)
    assert example is not None
    answering_in_turn(scheduler, model, f"[TOOL_CALLS][{WEATHER}]", "No, it is not.")
    program = example.group(1).replace("127.0.0.1:8000", f"127.0.0.1:{http_port}")
    running = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
    told_us, _ = await running.communicate()
    assert (running.returncode, told_us.decode().strip()) == (0, "No, it is not.")


async def test_one_call_can_be_all_that_is_wanted(client, scheduler, model):
    for stream in (False, True):
        answering(scheduler, model, ANSWER)
        made = await client.chat.completions.create(
            model="bytes", messages=[USER], tools=TOOLS, parallel_tool_calls=False, stream=stream
        )
        parts = [each async for each in made] if stream else [made]
        said = [each.choices[0].delta if stream else each.choices[0].message for each in parts]
        names = [call.function.name for each in said for call in each.tool_calls or () if call.function.name]
        assert names == ["weather"]
        assert parts[-1].choices[0].finish_reason == "tool_calls"
        await asyncio.wait_for(scheduler.sequences[-1].stopped.wait(), 10)


async def test_tools_that_may_not_be_called(client, scheduler, model):
    answering(scheduler, model, ANSWER)
    asked = {"model": "bytes", "messages": [USER], "tools": TOOLS, "tool_choice": "none"}
    (choice,) = (await client.chat.completions.create(**asked)).choices
    assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")
    # The marker is a special token, and as such no text.
    assert choice.message.content == ANSWER.replace("[TOOL_CALLS]", "")
    assert "weather" not in model.tokenizer.decode(list(scheduler.sequences[0].submit.prompt_token_ids))


@pytest.mark.parametrize("stream", [False, True])
async def test_each_choice_ends_with_its_own_reason(client, scheduler, model, stream):
    answers = ["No.", f"[TOOL_CALLS][{NOW}]", "So much to say, " * 4, "Well, STOP it"]
    answering(scheduler, model, *answers)
    made = await client.chat.completions.create(
        model="bytes", messages=[USER], tools=TOOLS, n=4, max_tokens=40, stop=["STOP"], stream=stream
    )
    texts, ends, stops = ["", "", "", ""], {}, {}
    for part in [each async for each in made] if stream else [made]:
        for choice in part.choices:
            texts[choice.index] += (choice.delta if stream else choice.message).content or ""
            if choice.finish_reason is not None:
                assert choice.index not in ends
                ends[choice.index], stops[choice.index] = choice.finish_reason, choice.stop_reason
    assert ends == {0: "stop", 1: "tool_calls", 2: "length", 3: "stop"}
    assert stops == {0: None, 1: None, 2: None, 3: "STOP"}
    assert texts == ["No.", "", answers[2][:40], "Well, "]


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": ["now"]}, "tools[0]"),
        ({"tools": [{"function": {"name": "now"}}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "custom": {"name": "now"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
         "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"a": 1e999}}}]},
         "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"\ud800": 1}}}]},
         "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "a", "more": 1}}]}, "tools[0].function.more"),
        ({"tools": [*TOOLS, TOOLS[1]]}, "tools[2].function.name"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": ["auto"]}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"functions": [{"name": "now"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"documents": ["a"]}, "documents[0]"),
        ({"documents": [{"a": 1e999}]}, "documents[0]"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"no": 1}}, "chat_template_kwargs"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"add_generation_prompt": 1}, "add_generation_prompt"),
        ({"messages": [USER, {"role": "assistant"}]}, "messages[1].content"),
        ({"messages": [{**USER, "tool_call_id": "a"}]}, "messages[0].tool_call_id"),
        ({"messages": [{**USER, "tool_calls": [{"type": "function", "function": {"name": "now"}}]}]},
         "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "now",
          "arguments": "[]"}}]}]}, "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "now",
          "arguments": {}}}]}]}, "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "now", "arguments": "{}"}}]},
         "messages[0].function_call"),
        ({"messages": [{"role": "function", "name": "now", "content": "1"}]}, "messages[0].role"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_named(http, body, parameter):
    # Python's json writes half a surrogate pair and infinity as clients may.
    data = json.dumps({"messages": [USER], **body}).replace("Infinity", "1e999").encode()
    answer = await http.post("/v1/chat/completions", content=data, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, parameter), answer.text


async def test_a_schema_nested_without_end_is_refused(http):
    for depth in (70, 900, 50_000):
        deep = b'{"a":' * depth + b"1" + b"}" * depth
        tool = b'{"type": "function", "function": {"name": "a", "parameters": %b}}' % deep
        data = b'{"messages": [{"role": "user", "content": "a"}], "tools": [%b]}' % tool
        answer = await http.post("/v1/chat/completions", content=data, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_field"), answer.text


async def test_a_schema_that_nothing_holds_the_model_to_is_named(client, scheduler, model):
    answering(scheduler, model, "No.")
    strict = {"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}
    answer = await client.chat.completions.with_raw_response.create(
        model="bytes", messages=[USER], tools=[strict, TOOLS[1]]
    )
    assert answer.headers["x-tercet-ignored"] == "tools.strict"
    for holds in ({"tool_choice": "required"}, {"response_format": {"type": "json_object"}}):
        answer = await client.chat.completions.with_raw_response.create(
            model="bytes", messages=[USER], tools=[strict, TOOLS[1]], **holds
        )
        assert "x-tercet-ignored" not in answer.headers
    answer = await client.chat.completions.with_raw_response.create(
        model="bytes", messages=[USER], parallel_tool_calls=True
    )
    assert answer.headers["x-tercet-ignored"] == "parallel_tool_calls"


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", ["weather", "now"]), ({"type": "function", "function": {"name": "now"}}, ["now"])],
)
async def test_a_call_that_has_to_be_made_is_a_grammar(client, scheduler, model, choice, names):
    answering(scheduler, model, f"[TOOL_CALLS][{NOW}]")
    made = await client.chat.completions.create(model="bytes", messages=[USER], tools=TOOLS, tool_choice=choice)
    assert told(made.choices[0].message.tool_calls) == [("function", "now", "{}")]
    assert made.choices[0].finish_reason == "tool_calls"
    grammar = scheduler.sequences[-1].submit.sampling.grammar
    assert [name for name in ("weather", "now") if f'\\"name\\": \\"{name}\\"' in grammar.text] == names
    assert list(grammar.end_ids) == list(model.eos_token_ids)


async def test_what_a_worker_cannot_follow_is_said_of_the_tools(http, scheduler, model):
    async def play(sequence):
        failure = failure_to_proto(InvalidFieldError("it explodes", field="grammar"))
        await sequence.end(sequence_pb2.END_REASON_FAILED, failure=failure)

    scheduler.play = play
    body = {"model": "bytes", "messages": [USER], "tools": TOOLS, "tool_choice": "required"}
    answer = await http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
    body = {"model": "bytes", "messages": [USER], "guided_regex": "a+"}
    answer = await http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "guided_regex")
