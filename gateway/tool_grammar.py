"""The answers that call tools, and are nothing else, as a grammar. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tercet.errors import InvalidFieldError
from tercet.grammar.grammar import MAX_BLANKS, Grammar

from .chat import Tool
from .json_schema import enforceable
from .structure import structural_tag
from .tool_format import ToolFormat


def calls_grammar(form: ToolFormat, tools: Sequence[Tool], *, single: bool) -> Grammar:
    """One or several whole calls of `tools`, or one if `single`, as `form` writes them; their arguments are valid by
    the tools' schemas. Raises InvalidFieldError for a schema that cannot be kept to."""
    lead, between, tail = _around(form)
    call = {"type": "or", "elements": [_call(form, tool) for tool in tools]}
    more = [] if single else [{"type": "star", "content": _sequence(_text(between), call)}]
    before, behind = ([_text(each)] if each else [] for each in (lead, tail))
    return structural_tag(_sequence(*before, call, *more, *behind))


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
    if schema.get("type", "object") != "object" or schema.keys() & {"enum", "const", "anyOf", "oneOf", "allOf"}:
        raise InvalidFieldError(f"the parameters of {tool.name} must be those of an object", field="chat.tools")
    return _sequence(
        _text(f'{{"name": "{tool.name}", "{form.arguments}": '),
        {"type": "json_schema", "json_schema": {**schema, "type": "object"}, "max_whitespace_cnt": MAX_BLANKS},
        _text("}"),
    )


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def _text(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}
