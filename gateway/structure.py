"""What a request wants its texts to be: as a grammar that workers follow. Pure; compiles nothing."""

from __future__ import annotations

import json
from typing import Any

from tercet.errors import InvalidFieldError
from tercet.grammar.grammar import Grammar, Syntax
from tercet.v1 import inference_pb2 as pb

from .json_field import refuse_constant
from .json_schema import enforceable
from .regex_check import check_regex

FIELD = "structured_output"
MAX_BYTES = 65_536
MAX_CHOICES = 1024
_ANY_OBJECT = {"type": "object", "additionalProperties": True}


def read_structure(given: pb.StructuredOutput) -> Grammar:
    """Checks what can be told without compiling it. Raises InvalidFieldError, which names the field."""
    if (size := given.ByteSize()) > MAX_BYTES:
        raise InvalidFieldError(f"{FIELD} has {size} bytes; at most {MAX_BYTES} are allowed", field=FIELD)
    form = given.WhichOneof("form")
    if form == "json_object":
        return Grammar(Syntax.JSON_SCHEMA, json.dumps(_ANY_OBJECT))
    if form == "json_schema":
        return Grammar(Syntax.JSON_SCHEMA, json.dumps(read_schema(given.json_schema, f"{FIELD}.json_schema")))
    if form == "choice":
        return _choice(given.choice)
    if form is None:
        raise InvalidFieldError(
            f"one of json_object, json_schema, regex, choice, ebnf is required in {FIELD}", field=FIELD
        )
    text: str = getattr(given, form)
    if not text:
        raise InvalidFieldError(f"{form} is empty", field=f"{FIELD}.{form}")
    if form == "ebnf":
        return Grammar(Syntax.EBNF, text)
    try:
        check_regex(text)
    except ValueError as error:
        raise InvalidFieldError(f"regex {error}", field=f"{FIELD}.regex") from None
    return Grammar(Syntax.REGEX, text)


def read_schema(text: str, field: str) -> Any:
    """A JSON schema, as the library has to read it. Raises InvalidFieldError."""
    try:
        schema = json.loads(text, parse_constant=refuse_constant)
        # What is deeper than the interpreter goes is refused as what is too deep for anybody.
        return enforceable(schema)
    except RecursionError:
        raise InvalidFieldError(f"{field} is nested too deeply", field=field) from None
    except ValueError as error:
        raise InvalidFieldError(f"{field}: {error}", field=field) from None


def structural_tag(form: Any) -> Grammar:
    """A grammar in the library's own words."""
    return Grammar(Syntax.STRUCTURAL_TAG, json.dumps({"type": "structural_tag", "format": form}))


def _choice(given: pb.Choice) -> Grammar:
    field = f"{FIELD}.choice"
    if not 0 < len(given.texts) <= MAX_CHOICES:
        raise InvalidFieldError(
            f"choice has {len(given.texts)} texts; it must have 1 to {MAX_CHOICES}", field=f"{field}.texts"
        )
    for index, text in enumerate(given.texts):
        if not text:
            raise InvalidFieldError(f"text {index} is empty", field=f"{field}.texts[{index}]")
    return Grammar(Syntax.EBNF, "root ::= " + " | ".join(map(_literal, dict.fromkeys(given.texts))))


def _literal(text: str) -> str:
    """A text as EBNF has it."""
    return '"' + "".join(_ESCAPES.get(each) or _escaped(each) for each in text) + '"'


def _escaped(character: str) -> str:
    return character if character.isprintable() else f"\\U{ord(character):08x}"


_ESCAPES = {'"': '\\"', "\\": "\\\\"}
