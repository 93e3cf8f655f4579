"""What a request wants its texts to be: what is taken leads to valid texts alone, and all else is refused by name."""

from __future__ import annotations

import contextlib
import json
import random
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.served_model import Catalogue, ServedModel
from gateway.string_pattern import for_json
from gateway.structure import MAX_BYTES, MAX_CHOICES, read_structure
from gateway.validate import GenerationRequest, validate_generate
from tercet.errors import InvalidFieldError
from tercet.grammar.follower import Follower
from tercet.grammar.grammar import Grammar
from tercet.v1 import inference_pb2 as pb

PIECES = [*(bytes([byte]) for byte in range(256)), b'": ', b'{"', b"tru", b"", "é€".encode()]
END = PIECES.index(b"")
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")
FOLLOWER = Follower(lambda _: PIECES, 1 << 20)


def write(grammar: Grammar, seed: int, most: int = 400) -> str | None:
    """A random text; None if it has not ended after so many tokens, or is none: from single bytes the library lets
    surrogates be put together, which a client would see as U+FFFD."""
    rng, tokens = random.Random(seed), list[int]()
    mask = FOLLOWER.open(seed, grammar, [END], [])
    while len(tokens) < most:
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[: len(PIECES)]
        allowed = bits.nonzero()[0]
        assert len(allowed), "nothing may come"
        # Soon over: there are more ways to go on than to end.
        ends = [each for each in (END, ord('"'), ord("}"), ord("]")) if bits[each]]
        token_id = rng.choice(ends) if ends and rng.random() < 0.3 else int(rng.choice(allowed))
        if token_id == END:
            raw = b"".join(PIECES[each] for each in tokens)
            return None if _SURROGATE.search(raw) else raw.decode()
        tokens.append(token_id)
        mask = FOLLOWER.step(seed, token_id)
    return None


def schema_of(schema: Any) -> pb.StructuredOutput:
    return pb.StructuredOutput(json_schema=json.dumps(schema))


def validate(schema: Any, value: Any, root: Any) -> None:
    """JSON schema, as far as the schemas below go, written without a look at what is tested."""
    if isinstance(schema, bool):
        assert schema
        return
    if "$ref" in schema:
        target = root
        for name in schema["$ref"].lstrip("#/").split("/"):
            target = target[name] if name else target
        validate(target, value, root)
        return
    if "anyOf" in schema:
        assert any(holds(each, value, root) for each in schema["anyOf"])
        return
    if "const" in schema:
        assert json.dumps(value) == json.dumps(schema["const"])
    if "enum" in schema:
        # To Python True is 1.
        assert json.dumps(value) in map(json.dumps, schema["enum"])
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert any(is_of(value, kind) for kind in kinds)
    if isinstance(value, dict):
        for name in schema.get("required", []):
            assert name in value
        for name, each in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties", True))
            validate(inner, each, root)
        assert schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", 99)
    elif isinstance(value, list):
        prefix = schema.get("prefixItems", [])
        for index, each in enumerate(value):
            validate(prefix[index] if index < len(prefix) else schema.get("items", True), each, root)
        assert schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 999)
    elif isinstance(value, str):
        assert schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 999)
        assert re.search(schema.get("pattern", ""), value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        assert schema.get("minimum", value) <= value <= schema.get("maximum", value)
        assert "exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"]
        assert "exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"]


def holds(schema: Any, value: Any, root: Any) -> bool:
    try:
        validate(schema, value, root)
    except AssertionError:
        return False
    return True


def is_of(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    kinds: dict[str, Any] = {
        "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "null": type(None),
    }  # fmt: skip
    return kind in kinds and isinstance(value, kinds[kind])


numbers = st.integers(-50, 50)
small = st.integers(0, 5)
leaves = st.one_of(
    st.sampled_from(
        [
            {"type": "null"}, {"type": "boolean"}, {"type": ["string", "null"], "maxLength": 4}, {"const": "é\"\\\n"},
            {"enum": [1, "b", None, [2]]}, {"type": "string", "pattern": "^[a-z]{2}[^x]$"}, {"type": "number"},
            {"type": "string", "pattern": r"^\d{2}.\S$"}, {"type": "string"}, {"$ref": "#/$defs/name"},
        ]
    ),
    st.builds(lambda a, b: {"type": "integer", "minimum": min(a, b), "maximum": max(a, b)}, numbers, numbers),
    st.builds(lambda a: {"type": "number", "exclusiveMinimum": a, "exclusiveMaximum": a + 3}, numbers),
    st.builds(lambda a, b: {"type": "string", "minLength": a, "maxLength": a + b}, small, small),
)  # fmt: skip


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(st.sampled_from(["a", "b c", 'q"', "ü"]), inner, min_size=1, max_size=3)

    def build(found: dict[str, Any], keep: int, others: Any) -> dict[str, Any]:
        names = list(found)[:keep]
        return {"type": "object", "properties": found, "required": names, "additionalProperties": others}

    return st.builds(build, properties, st.integers(0, 3), st.sampled_from([False, {"type": "boolean"}]))


def arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda each, least, more: {"type": "array", "items": each, "minItems": least, "maxItems": least + more},
        inner, st.integers(0, 2), st.integers(0, 2),
    )  # fmt: skip


schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        objects(inner), arrays(inner), st.lists(inner, min_size=1, max_size=3).map(lambda each: {"anyOf": each})
    ),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(schema=schemas, seed=st.integers(0, 999))
def test_whatever_a_schema_lets_through_is_valid(schema: dict[str, Any], seed: int) -> None:
    schema = {**schema, "$defs": {"name": {"type": "string", "minLength": 1, "maxLength": 3}}, "title": "any"}
    text = write(read_structure(schema_of(schema)), seed)
    if text is not None:
        validate(schema, json.loads(text), schema)


characters = st.sampled_from(["a", "b", r"\d", "[a-c]", "[^a]", ".", r"\w", "é", r"\.", " "])
pieces = st.builds(lambda a, b: a + b, characters, st.sampled_from(["", "?", "+", "*", "{2}", "{1,3}", "{2,}"]))
regexes = st.recursive(
    st.lists(pieces, min_size=1, max_size=4).map("".join),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda each: "(" + "|".join(each) + ")"),
        st.builds(lambda a, b: f"(?:{a}){b}", inner, st.sampled_from(["?", "{1,2}", ""])),
    ),
    max_leaves=4,
)


@settings(max_examples=60, deadline=None)
@given(regex=regexes, seed=st.integers(0, 999))
def test_whatever_a_regex_lets_through_matches(regex: str, seed: int) -> None:
    text = write(read_structure(pb.StructuredOutput(regex=regex)), seed, most=120)
    if text is not None:
        assert re.fullmatch(regex, text, re.DOTALL)


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_a_choice_is_one_of_its_texts(texts: list[str], seed: int) -> None:
    assert write(read_structure(pb.StructuredOutput(choice=pb.Choice(texts=texts))), seed) in texts


def test_an_object_is_whatever_is_in_it() -> None:
    written = [write(read_structure(pb.StructuredOutput(json_object=pb.JsonObject())), seed) for seed in range(20)]
    found = [json.loads(text) for text in written if text is not None]
    assert all(isinstance(each, dict) for each in found)
    assert any(found)


REFUSED: list[tuple[Any, str]] = [
    ({"type": "integer", "multipleOf": 3}, "multipleOf"),
    ({"type": "array", "items": True, "uniqueItems": True}, "uniqueItems"),
    ({"not": {"type": "string"}}, "not"),
    ({"type": "object", "properties": {"a": {"contains": 1}}}, "#/properties/a"),
    ({"allOf": [{"type": "integer"}, {"minimum": 5}]}, "allOf"),
    ({"type": "integer", "allOf": [{"minimum": 5}]}, "allOf"),
    ({"anyOf": [{"type": "integer"}], "minimum": 5}, "anyOf"),
    ({"minimum": 4}, "minimum"),
    ({"type": "string", "minimum": 4}, "minimum"),
    ({"type": "integer", "enum": [1, "x"]}, "enum"),
    ({"type": "object", "required": ["z"]}, "required"),
    ({"type": "string", "pattern": "a", "maxLength": 3}, "pattern"),
    ({"type": "string", "pattern": '"'}, "pattern"),
    ({"type": "string", "pattern": "[ -~]"}, "pattern"),
    ({"type": "string", "format": "date", "maxLength": 3}, "format"),
    ({"type": "string", "format": "phone"}, "phone"),
    ({"type": "string", "format": {}}, "format"),
    ({"type": "string", "pattern": 5}, "pattern"),
    ({"type": "string", "pattern": r"\Aa\Z"}, r"/pattern has \A"),
    ({"type": "object", "patternProperties": {"a$b": True}}, "/patternProperties has $"),
    ({"type": "object", "properties": {"a": True}, "patternProperties": {"^b$": True}}, "patternProperties"),
    ({"type": "object", "additionalProperties": True, "minProperties": 1}, "minProperties"),
    ({"$ref": "http://example.com/schema"}, "$ref"),
    ({"type": "text"}, "type"),
    ({"type": []}, "type"),
    ({"type": {}}, "type"),
    ({"required": 5}, "required"),
    ([1], "object"),
]


values = st.recursive(
    st.sampled_from([None, True, 5, 1.5, "a", "#", "[a", "object", "string"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["a", "type", "required"]), inner, max_size=2)
    ),
    max_leaves=4,
)
KEYWORDS = (
    "type", "required", "enum", "const", "anyOf", "oneOf", "$ref", "properties", "additionalProperties",
    "patternProperties", "propertyNames", "minProperties", "items", "prefixItems", "pattern", "format", "minLength",
    "minimum", "$defs",
)  # fmt: skip


@settings(max_examples=200)
@given(schema=st.dictionaries(st.sampled_from(KEYWORDS), values, max_size=4))
def test_any_json_is_a_schema_or_refused(schema: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidFieldError):
        read_structure(schema_of(schema))


@pytest.mark.parametrize(("schema", "named"), REFUSED)
def test_what_cannot_be_kept_to_is_refused_by_name(schema: Any, named: str) -> None:
    with pytest.raises(InvalidFieldError, match=re.escape(named.removeprefix("#"))) as caught:
        read_structure(schema_of(schema))
    assert caught.value.metadata["field"] == "structured_output.json_schema"


@pytest.mark.parametrize("text", ["", "{", "nan", "NaN", "[" * 5000, '{"a":' * 5000])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidFieldError):
        read_structure(pb.StructuredOutput(json_schema=text))


@pytest.mark.parametrize(
    ("given_output", "field"),
    [
        (pb.StructuredOutput(), "structured_output"),
        (pb.StructuredOutput(regex=""), "structured_output.regex"),
        (pb.StructuredOutput(ebnf=""), "structured_output.ebnf"),
        (pb.StructuredOutput(regex="a" * MAX_BYTES), "structured_output"),
        (pb.StructuredOutput(choice=pb.Choice()), "structured_output.choice.texts"),
        (pb.StructuredOutput(choice=pb.Choice(texts=["a"] * (MAX_CHOICES + 1))), "structured_output.choice.texts"),
        (pb.StructuredOutput(choice=pb.Choice(texts=["a", ""])), "structured_output.choice.texts[1]"),
    ],
)
def test_what_is_missing_or_too_much_is_named(given_output: pb.StructuredOutput, field: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        read_structure(given_output)
    assert caught.value.metadata["field"] == field


def request_of(model: ServedModel, **fields: Any) -> GenerationRequest:
    message = pb.GenerateRequest(prompt="x", structured_output=pb.StructuredOutput(regex="a"), **fields)
    return validate_generate(message, Catalogue([model]), max_prompt_bytes=1000)


def test_a_text_that_could_not_end_is_refused(model: ServedModel) -> None:
    assert request_of(model).structure is not None
    for fields in (
        {"stop": pb.StopConditions(ignore_eos=True)},
        {"sampling": pb.SamplingParams(allowed_token_ids=[1, 2])},
    ):
        with pytest.raises(InvalidFieldError, match="end token"):
            request_of(model, **fields)
    assert request_of(model, sampling=pb.SamplingParams(allowed_token_ids=[1, *model.eos_token_ids])).structure


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([r"a.c", r"[^x]+", r"\S{2}", r"[a-z\s]", r"\W", r"[^\]a]", r"\D"]), st.text(max_size=4))
def test_a_pattern_inside_json_matches_less_and_nothing_that_is_escaped(pattern: str, text: str) -> None:
    if re.fullmatch(for_json(pattern), text):
        assert re.fullmatch(pattern, text, re.DOTALL)
        assert json.loads(f'"{text}"') == text
