"""Tools from a file, and calls of them as a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tercet.client import Tool, ToolCall


def _read(_: click.Context, parameter: click.Parameter, name: str | None) -> tuple[Tool, ...]:
    """The tools of a file. Raises click.BadParameter."""
    if name is None:
        return ()
    try:
        items = json.loads(Path(name).read_text(encoding="utf-8"))
        return tuple(map(_tool, items))
    except OSError as error:
        raise click.BadParameter(f"cannot read {name}: {error.strerror}", param=parameter) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        problem = 'is not a JSON list of {"name": ..., "description": ..., "parameters": {...}}'
        raise click.BadParameter(f"{name} {problem}", param=parameter) from None


def _tool(item: dict[str, Any]) -> Tool:
    # As OpenAI has them, too.
    function = item.get("function", item)
    parameters = function.get("parameters")
    return Tool(
        name=str(function["name"]),
        description=str(function.get("description") or ""),
        parameters="" if parameters is None else json.dumps(parameters),
    )


tools_option = click.option(
    "--tools",
    metavar="FILE",
    callback=_read,
    help="A JSON list of functions that the model may call: name, description, parameters.",
)


def to_line(call: ToolCall) -> str:
    """A call, for people."""
    return f"{call.name}({call.arguments})"
