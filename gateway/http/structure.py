"""What an answer has to be, as OpenAI asks (`response_format`), and vLLM (`structured_outputs`, `guided_*`). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tercet.errors import InvalidFieldError
from tercet.v1 import inference_pb2 as pb

from .fields import Fields

# vLLM's names for the forms, as it has them now and as it had them.
_OF_VLLM = {"json": "json", "regex": "regex", "choice": "choice", "grammar": "ebnf", "json_object": "json_object"}
_GUIDED = {f"guided_{name}": form for name, form in _OF_VLLM.items()}
_NEUTRAL: Mapping[str, Any] = {"disable_any_whitespace": (False,)}
_ANY_OBJECT = '{"type": "object"}'


def read_form(fields: Fields, ignored: list[str]) -> tuple[str, pb.StructuredOutput] | None:
    """The parameter that says so, and what it says; None if there is none. Raises InvalidFieldError for two."""
    found = [
        each
        for each in (_response_format(fields, ignored), _structured_outputs(fields, ignored), *_guided(fields))
        if each is not None
    ]
    if len(found) > 1:
        raise InvalidFieldError(f"{found[0][0]} and {found[1][0]} exclude each other", field=found[1][0])
    return found[0] if found else None


def _response_format(fields: Fields, ignored: list[str]) -> tuple[str, pb.StructuredOutput] | None:
    given = fields.inner("response_format")
    if given is None:
        return None
    kind = given.text("type")
    if kind == "json_schema":
        described = given.inner("json_schema")
        if described is None:
            raise InvalidFieldError("response_format.json_schema is required", field="response_format")
        schema = _schema(described, "schema")
        # All schemas are kept to.
        described.flag("strict")
        described.text("name")
        ignored += described.ignored(("description",))
        described.refuse_rest()
        form = pb.StructuredOutput(json_schema=_ANY_OBJECT if schema is None else schema)
    elif kind == "json_object":
        form = pb.StructuredOutput(json_object=pb.JsonObject())
    elif kind != "text":
        problem = f"response_format.type is {(kind or '')[:64]!r}; it must be text, json_object or json_schema"
        raise InvalidFieldError(problem, field="response_format")
    given.refuse_rest()
    return None if kind == "text" else ("response_format", form)


def _structured_outputs(fields: Fields, ignored: list[str]) -> tuple[str, pb.StructuredOutput] | None:
    given = fields.inner("structured_outputs")
    if given is None:
        return None
    given.only(_NEUTRAL)
    # Objects have no properties but those of their schema, whatever it says here.
    if given.flag("disable_additional_properties") is False:
        ignored.append("structured_outputs.disable_additional_properties")
    forms = _forms(given, _OF_VLLM)
    given.refuse_rest()
    if len(forms) != 1:
        raise InvalidFieldError("structured_outputs must have exactly one form", field="structured_outputs")
    return "structured_outputs", forms[0][1]


def _guided(fields: Fields) -> list[tuple[str, pb.StructuredOutput]]:
    return _forms(fields, _GUIDED)


def _forms(fields: Fields, names: Mapping[str, str]) -> list[tuple[str, pb.StructuredOutput]]:
    """Those of the forms that are there, by the names that they have."""
    found = []
    for name, form in names.items():
        if form == "json":
            schema = _schema(fields, name)
            if schema is not None:
                found.append((name, pb.StructuredOutput(json_schema=schema)))
        elif form == "json_object":
            if fields.flag(name):
                found.append((name, pb.StructuredOutput(json_object=pb.JsonObject())))
        elif form == "choice":
            texts = fields.members(name)
            if texts is not None:
                choice = pb.Choice(texts=[fields.as_text(f"{name}[{i}]", each) for i, each in enumerate(texts)])
                found.append((name, pb.StructuredOutput(choice=choice)))
        elif (text := fields.text(name)) is not None:
            said = pb.StructuredOutput(regex=text) if form == "regex" else pb.StructuredOutput(ebnf=text)
            found.append((name, said))
    return found


def _schema(fields: Fields, name: str) -> str | None:
    """A schema that is given as JSON, or as the text of it."""
    given = fields.take(name)
    if given is None:
        return None
    return fields.as_text(name, given) if isinstance(given, str) else fields.as_json(name, given)
