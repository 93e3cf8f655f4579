"""Answers that call tools: random ones are whole calls, valid by the tools' schemas, in every format."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.chat import Tool
from gateway.structure import read_structure
from gateway.tool_format import HERMES, LLAMA3_JSON, MISTRAL, TOOL_FORMATS, ToolFormat
from gateway.tool_grammar import calls_grammar, text_or_calls_grammar
from gateway.tool_parser import ToolParser
from tercet.errors import InvalidFieldError
from tercet.v1 import inference_pb2 as pb

from .test_structure import holds, objects, schemas, validate, write

TOOLS = [
    Tool(
        "get", "", {"type": "object", "properties": {"city": {"type": "string", "maxLength": 4}}, "required": ["city"]}
    ),
    Tool("a.b/c:d-e", "", {"type": "object", "properties": {}}),
    Tool("add", "", {"properties": {"x": {"$ref": "#/$defs/n"}}, "required": ["x"], "$defs": {"n": {"enum": [1, 2]}}}),
    # As what writes schemas of classes that contain themselves has it.
    Tool(
        "put",
        "",
        {
            "$ref": "#/$defs/node",
            "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
        },
    ),
]


def called(form: ToolFormat, answer: str, tools: list[Tool], *, single: bool) -> list[tuple[str, Any]]:
    """What a client is told: calls alone."""
    parser = ToolParser(form, {tool.name for tool in tools}, single=single)
    calls: list[tuple[str, str]] = []
    for piece in [*parser.push(answer), *parser.finish()]:
        assert not piece.text, answer
        if piece.name:
            calls.append((piece.name, piece.arguments or ""))
        elif piece.arguments:
            calls[-1] = calls[-1][0], calls[-1][1] + piece.arguments
    assert parser.called, answer
    return [(name, json.loads(arguments)) for name, arguments in calls]


@settings(max_examples=40, deadline=None)
@given(
    form=st.sampled_from([*TOOL_FORMATS.values()]),
    parameters=objects(
        st.sampled_from([{"type": "integer"}, {"type": "string", "maxLength": 3}, {"enum": ["<", "}"]}])
    ),
    single=st.booleans(),
    seed=st.integers(0, 999),
)
def test_an_answer_is_whole_valid_calls(form: ToolFormat, parameters: Any, single: bool, seed: int) -> None:
    tools = [*TOOLS, Tool("drawn", "", parameters)]
    answer = write(calls_grammar(form, tools, single=single), seed, most=600)
    if answer is None:
        return
    calls = called(form, answer, tools, single=single)
    assert len(calls) == 1 or not single
    for name, arguments in calls:
        (schema,) = (tool.parameters for tool in tools if tool.name == name)
        validate(schema, arguments, schema)


@pytest.mark.parametrize("form", [HERMES, LLAMA3_JSON, MISTRAL])
def test_there_may_be_several_and_any_of_the_tools(form: ToolFormat) -> None:
    answers = [write(calls_grammar(form, TOOLS, single=False), seed, most=600) for seed in range(40)]
    calls = [called(form, answer, TOOLS, single=False) for answer in answers if answer is not None]
    assert max(map(len, calls)) > 1
    assert {name for each in calls for name, _ in each} == {tool.name for tool in TOOLS}
    one = write(calls_grammar(form, TOOLS[1:2], single=True), 1)
    assert one is not None
    assert called(form, one, TOOLS[1:2], single=True) == [("a.b/c:d-e", {})]


@settings(max_examples=40, deadline=None)
@given(form=st.sampled_from([*TOOL_FORMATS.values()]), schema=schemas, seed=st.integers(0, 999))
def test_an_answer_is_what_was_asked_of_it_or_calls(form: ToolFormat, schema: Any, seed: int) -> None:
    schema = {**schema, "$defs": {"name": {"type": "string", "minLength": 1, "maxLength": 3}}}
    asked = read_structure(pb.StructuredOutput(json_schema=json.dumps(schema)))
    answer = write(text_or_calls_grammar(asked, form, TOOLS, single=False), seed, most=600)
    if answer is None:
        return
    if is_json_by(schema, answer):
        parser = ToolParser(form, {tool.name for tool in TOOLS})
        assert "".join(piece.text for piece in [*parser.push(answer), *parser.finish()]) == answer
        return
    for name, arguments in called(form, answer, TOOLS, single=False):
        (parameters,) = (tool.parameters for tool in TOOLS if tool.name == name)
        validate(parameters, arguments, parameters)


def is_json_by(schema: Any, text: str) -> bool:
    try:
        return holds(schema, json.loads(text), schema)
    except ValueError:
        return False


@pytest.mark.parametrize("form", [HERMES, LLAMA3_JSON, MISTRAL])
def test_it_may_be_either(form: ToolFormat) -> None:
    asked = read_structure(pb.StructuredOutput(json_schema='{"enum": ["yes", "no"]}'))
    grammar = text_or_calls_grammar(asked, form, TOOLS[1:2], single=True)
    answers = {write(grammar, seed) for seed in range(30)}
    calls = answers - {'"yes"', '"no"'}
    assert answers - calls == {'"yes"', '"no"'}
    assert [called(form, str(each), TOOLS[1:2], single=True) for each in calls] == [[("a.b/c:d-e", {})]] * len(calls)
    assert calls


def test_what_is_no_json_leaves_no_room_for_calls() -> None:
    for asked in (pb.StructuredOutput(regex="a"), pb.StructuredOutput(choice=pb.Choice(texts=["a"]))):
        with pytest.raises(InvalidFieldError, match="tool_choice may be none") as caught:
            text_or_calls_grammar(read_structure(asked), HERMES, TOOLS, single=True)
        assert caught.value.metadata["field"] == "structured_output"


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "string"}, {"anyOf": [{"type": "object"}]}, {"multipleOf": 3}, {"type": {}}, {"required": 5},
        {"properties": {"x": {"type": [["string"]]}}}, {"$ref": "#/$defs/s", "$defs": {"s": {"type": "string"}}},
        {"$ref": "#"}, {"$ref": "#/$defs/gone"}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    ],
)  # fmt: skip
def test_parameters_that_cannot_be_kept_to_name_their_tool(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidFieldError, match="odd") as caught:
        calls_grammar(HERMES, [*TOOLS, Tool("odd", "", parameters)], single=True)
    assert caught.value.metadata["field"] == "chat.tools"
