"""Flags for what the text of an answer has to be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def _text(_: click.Context, parameter: click.Parameter, value: str | None) -> str:
    """What was given, empty if nothing was. Raises click.BadParameter for a text without anything in it, which would
    be the same."""
    if value is None:
        return ""
    if not value.strip():
        raise click.BadParameter("is empty", param=parameter)
    return value


def _text_or_file(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    """The text itself, or what the file of `@FILE` holds. Raises click.BadParameter."""
    if value is None or not value.startswith("@"):
        return _text(context, parameter, value)
    name = value[1:]
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise click.BadParameter(f"cannot read {name}: {problem}", param=parameter) from None
    if not text.strip():
        raise click.BadParameter(f"{name} is empty", param=parameter)
    return text


def form_options(command: Command) -> Command:
    """Adds them. Their keywords are those of client.Options; that a text has one form the client says."""
    flags = [
        click.option("--json-object", is_flag=True, help="The text is a JSON object."),
        click.option(
            "--json-schema",
            metavar="@FILE|TEXT",
            callback=_text_or_file,
            help="The text is JSON that is valid by this schema.",
        ),
        click.option("--regex", metavar="TEXT", callback=_text, help="All of the text matches it."),
        click.option("--choice", multiple=True, metavar="TEXT", help="The text is one of these; repeatable."),
        click.option(
            "--ebnf",
            metavar="@FILE|TEXT",
            callback=_text_or_file,
            help="The text is a sentence of this grammar, which begins with the rule root.",
        ),
    ]
    for flag in reversed(flags):
        command = flag(command)
    return command
