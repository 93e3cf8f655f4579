"""What is taken with oneOf leads to texts that are valid by one of its schemas alone; else it is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.one_of import MAX_COMPARED
from gateway.structure import read_structure
from tercet.errors import InvalidFieldError

from .test_structure import holds, objects, schema_of, schemas, write

NAME = {"type": "string", "maxLength": 3}
CIRCLE = {"type": "object", "properties": {"kind": {"const": "circle"}, "r": NAME}, "required": ["kind"]}
SQUARE = {"type": "object", "properties": {"kind": {"enum": ["square", "box"]}}, "required": ["kind"]}
DEFS: dict[str, Any] = {
    "circle": CIRCLE,
    "square": SQUARE,
    "both": {"anyOf": [{"$ref": "#/$defs/square"}, {"type": "null"}]},
}
DEFS["odd"] = {"$defs": {"required": {"type": "string"}, "$ref": {"type": "string"}}}


def having(*names: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(names, NAME), "required": [*names], **more}


@pytest.mark.parametrize(
    "one_of",
    [
        [{"type": "integer"}],
        [{"type": "integer"}, {"type": ["string", "null"]}, {"type": "boolean"}],
        [{"const": 1}, {"const": True}, {"enum": ["1", None]}],
        [{"const": "a"}, {"type": "integer"}],
        [CIRCLE, SQUARE, {"type": "array"}],
        [{"$ref": "#/$defs/circle"}, {"$ref": "#/$defs/both"}],
        [having("a"), having("b")],
        [having("a", additionalProperties=False), having("a", "b", additionalProperties=False)],
    ],
)
def test_what_excludes_each_other_is_taken(one_of: list[Any]) -> None:
    schema = {"oneOf": one_of, "$defs": DEFS}
    for seed in range(10):
        text = write(read_structure(schema_of(schema)), seed)
        if text is not None:
            assert sum(holds(each, json.loads(text), schema) for each in one_of) == 1


@pytest.mark.parametrize(
    "one_of",
    [
        [{"type": "number"}, {"type": "integer"}],
        [{"const": 1}, {"enum": [2, 1.0]}],
        [{"const": "a"}, {"type": "string"}],
        [{"type": "string"}, {}],
        [{"type": "string"}, True],
        [CIRCLE, CIRCLE],
        [CIRCLE, {"$ref": "#/$defs/circle"}],
        [{"$ref": "#/$defs/both"}, {"type": "null"}],
        [having("a"), having("a", "b")],
        [having("a", additionalProperties=NAME), having("b")],
        [{"$ref": "#"}, {"type": "array"}],
        # No schema, though it looks like one.
        [{"$ref": "#/$defs/odd/$defs"}, having("type")],
        [{"type": "string", "maxLength": 3}, {"type": "string", "minLength": 2}],
    ],
)
def test_what_could_be_valid_by_two_is_refused(one_of: list[Any]) -> None:
    schema = {"type": "array", "items": {"oneOf": one_of}, "$defs": DEFS}
    with pytest.raises(InvalidFieldError, match=re.escape("the schema at /items/oneOf has 0 and 1")):
        read_structure(schema_of(schema))


def test_comparing_ends() -> None:
    wide = [{"type": "object", "properties": {"k": {"const": index}}, "required": ["k"]} for index in range(300)]
    assert len(wide) ** 2 / 2 > MAX_COMPARED
    deep = {str(index): {"anyOf": [{"$ref": f"#/$defs/{index + 1}"}] * 9} for index in range(12)}
    deep["12"] = {"anyOf": [{"type": "null"}]}
    for schema in ({"oneOf": wide}, {"oneOf": [{"$ref": "#/$defs/0"}, {"type": "string"}], "$defs": deep}):
        with pytest.raises(InvalidFieldError, match="oneOf has"):
            read_structure(schema_of(schema))


@settings(max_examples=60, deadline=None)
@given(one_of=st.lists(st.one_of(schemas, objects(schemas)), min_size=2, max_size=3), seed=st.integers(0, 999))
def test_whatever_is_taken_is_valid_by_one_alone(one_of: list[Any], seed: int) -> None:
    schema = {"oneOf": one_of, "$defs": {"name": {"type": "string", "minLength": 1, "maxLength": 3}}}
    try:
        grammar = read_structure(schema_of(schema))
    except InvalidFieldError:
        return
    text = write(grammar, seed)
    if text is not None:
        assert sum(holds(each, json.loads(text), schema) for each in one_of) == 1
