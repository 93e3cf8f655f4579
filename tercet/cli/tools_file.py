"""Tools from a file, which of them are called, and calls as a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tercet.client import Tool, ToolCall
from tercet.messages import ToolChoice


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


# Of `--tool-choice`. A tool of such a name cannot be forced by it.
_CHOICES: tuple[ToolChoice, ...] = ("auto", "none", "required")


def _checked_choice(_: click.Context, parameter: click.Parameter, value: str) -> str:
    """Raises click.BadParameter for no text: to send nothing would be auto."""
    if not value:
        raise click.BadParameter("is empty", param=parameter)
    return value


tool_choice_option = click.option(
    "--tool-choice",
    default="auto",
    show_default=True,
    metavar="auto|none|required|NAME",
    callback=_checked_choice,
    help="Whether the model may call --tools, must not, has to, or which one it has to.",
)


def to_choice(given: str) -> tuple[ToolChoice, str]:
    """The choice of `--tool-choice`, and the name of the tool that has to be called, else empty."""
    for choice in _CHOICES:
        if given == choice:
            return choice, ""
    return "auto", given


def to_line(call: ToolCall) -> str:
    """A call, for people."""
    return f"{call.name}({call.arguments})"
