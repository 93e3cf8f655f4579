"""Structured output over HTTP: OpenAI's parameter and vLLM's are what gRPC asks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.http.fields import Fields
from gateway.http.structure import read_form
from tercet.errors import InvalidFieldError
from tercet.v1 import inference_pb2 as pb

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
AS_SCHEMA = pb.StructuredOutput(json_schema=json.dumps(SCHEMA))
OBJECT = pb.StructuredOutput(json_object=pb.JsonObject())


@pytest.mark.parametrize(
    ("body", "form"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, OBJECT),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}, AS_SCHEMA),
        ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": False}}, AS_SCHEMA),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, AS_SCHEMA),
        ({"structured_outputs": {"regex": "a+"}}, pb.StructuredOutput(regex="a+")),
        ({"structured_outputs": {"grammar": "root ::= x"}}, pb.StructuredOutput(ebnf="root ::= x")),
        ({"structured_outputs": {"json_object": True}}, OBJECT),
        ({"guided_json": SCHEMA}, AS_SCHEMA),
        ({"guided_choice": ["a", "b"]}, pb.StructuredOutput(choice=pb.Choice(texts=["a", "b"]))),
        ({"guided_regex": "a+", "guided_json": None}, pb.StructuredOutput(regex="a+")),
        ({"guided_grammar": "root ::= x"}, pb.StructuredOutput(ebnf="root ::= x")),
    ],
)
def test_each_way_to_say_it(body: dict[str, Any], form: pb.StructuredOutput | None) -> None:
    fields = Fields(body)
    found = read_form(fields, [])
    fields.refuse_rest()
    assert (None if found is None else found[1]) == form
    assert found is None or found[0] in body


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "text", "else": 1}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "else": 1}}},
        {"structured_outputs": {}},
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        {"structured_outputs": {"structural_tag": "{}"}},
        {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
        {"structured_outputs": {"regex": "a", "disable_additional_properties": 0}},
        {"structured_outputs": {"choice": [1]}},
        {"structured_outputs": {"json": 5}},
        {"guided_json": "\ud800"},
        {"guided_json": {"title": "\ud800"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": ["\ud800"]}}},
        {"guided_regex": "a", "response_format": {"type": "json_object"}},
    ],
)
def test_what_is_not_offered_or_said_twice_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidFieldError):
        read_form(Fields(body), [])


@pytest.mark.parametrize(("said", "named"), [(False, True), (True, False), (None, False)])
def test_properties_that_stay_closed_though_a_client_opens_them_are_named(said: bool | None, *, named: bool) -> None:
    ignored: list[str] = []
    body = {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": said}}
    assert read_form(Fields(body), ignored) == ("structured_outputs", AS_SCHEMA)
    assert ignored == ["structured_outputs.disable_additional_properties"] * named


async def test_it_goes_down_as_a_grammar(http: Any, scheduler: Any) -> None:
    body = {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}
    assert (await http.post("/v1/completions", json=body)).status_code == 200
    assert json.loads(scheduler.sequences[-1].submit.sampling.grammar.text) == SCHEMA
    answer = await http.post("/v1/completions", json={"prompt": "a", "guided_regex": "a("})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "guided_regex"
    assert "parenthesis" in answer.json()["error"]["message"]
