"""The answers that call tools, or that are what was asked of their text instead, as a grammar. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tercet.errors import InvalidFieldError
from tercet.grammar.grammar import MAX_BLANKS, Grammar, Syntax

from .chat import Tool
from .json_schema import enforceable
from .structure import FIELD, structural_tag
from .tool_format import ToolFormat


def calls_grammar(form: ToolFormat, tools: Sequence[Tool], *, single: bool) -> Grammar:
    """One or several whole calls of `tools`, or one if `single`, as `form` writes them; their arguments are valid by
    the tools' schemas. Raises InvalidFieldError for a schema that cannot be kept to."""
    return structural_tag(_calls(form, tools, single=single))


def text_or_calls_grammar(text: Grammar, form: ToolFormat, tools: Sequence[Tool], *, single: bool) -> Grammar:
    """What `text` says, or calls as in `calls_grammar`. Raises InvalidFieldError also for a text that is not JSON by a
    schema: others may need control characters, which JSON's vocabulary has not."""
    if text.syntax is not Syntax.JSON_SCHEMA:
        raise InvalidFieldError(
            f"{FIELD} beside tools that may be called must be json_object or json_schema; tool_choice may be none",
            field=FIELD,
        )
    elements = [_json(json.loads(text.text)), _calls(form, tools, single=single)]
    return structural_tag({"type": "or", "elements": elements})


def _calls(form: ToolFormat, tools: Sequence[Tool], *, single: bool) -> dict[str, Any]:
    lead, between, tail = _around(form)
    call = {"type": "or", "elements": [_call(form, tool) for tool in tools]}
    more = [] if single else [{"type": "star", "content": _sequence(_text(between), call)}]
    before, behind = ([_text(each)] if each else [] for each in (lead, tail))
    return _sequence(*before, call, *more, *behind)


def _around(form: ToolFormat) -> tuple[str, str, str]:
    """What stands before the calls, between two, and behind."""
    if form.bare:
        return "", f"{form.separators[0]} ", ""
    if form.list_begin:
        return f"{form.opener}{form.list_begin}", f"{form.separators[0]} ", form.closer
    lead, tail = f"{form.opener}\n", f"\n{form.closer}"
    return lead, f"{tail}\n{lead}", tail


def _call(form: ToolFormat, tool: Tool) -> dict[str, Any]:
    try:
        schema = enforceable(tool.parameters)
    except ValueError as error:
        raise InvalidFieldError(f"the parameters of {tool.name}: {error}", field="chat.tools") from None
    except RecursionError:
        raise InvalidFieldError(f"the parameters of {tool.name} are nested too deeply", field="chat.tools") from None
    meant = _meant(schema)
    if meant.get("type", "object") != "object" or meant.keys() & {"$ref", "enum", "const", "anyOf", "oneOf", "allOf"}:
        raise InvalidFieldError(f"the parameters of {tool.name} must be those of an object", field="chat.tools")
    return _sequence(
        _text(f'{{"name": "{tool.name}", "{form.arguments}": '),
        _json({**schema, "type": "object"}),
        _text("}"),
    )


def _meant(schema: dict[str, Any]) -> dict[str, Any]:
    """What a schema refers to, if that is all it does and leads to another one; else itself."""
    found, seen = schema, set[str]()
    while (pointer := found.get("$ref")) is not None and pointer not in seen:
        seen.add(pointer)
        target: Any = schema
        for name in pointer.removeprefix("#").split("/")[1:]:
            target = target.get(name) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            break
        found = target
    return found


def _json(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MAX_BLANKS}


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def _text(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}
