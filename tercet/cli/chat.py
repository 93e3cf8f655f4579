"""``tercet chat``: a conversation, turn by turn."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import Sequence
from typing import Any

import click

from tercet.cli.asking import (
    CONTROL_TIMEOUT_S,
    model_option,
    read_line,
    run_async,
    show_text,
    timeout_option,
)
from tercet.cli.connection import client_options
from tercet.cli.root import to_text
from tercet.cli.sampling_options import options_of, sampling_options
from tercet.client import Answer, AsyncClient, ChatMessage, Conversation, Options
from tercet.errors import GatewayLostError, RequestError

_COMMANDS = "/reset forgets the conversation, /quit ends, Ctrl-C stops an answer."
# "/help" and "/help me", but not a path such as "/etc/hosts".
_COMMAND = re.compile(r"/\w*(\s|$)")


async def check_model(client: AsyncClient, model: str) -> None:
    """Raises errors.RequestError if no gateway answers or it does not serve the model."""
    async with client:
        await client.model(model, timeout_s=CONTROL_TIMEOUT_S)


async def reply(
    client: AsyncClient, messages: Sequence[ChatMessage], options: Options, timeout_s: float | None, parts: list[str]
) -> Answer:
    """The model's turn. Streams it to the terminal, and into `parts`, which keep what came before an interruption."""

    def show(text: str) -> None:
        parts.append(text)
        show_text(text)

    async with client, client.generate(messages, options, timeout_s=timeout_s) as generation:
        return await generation.answer(show)


@click.command()
@client_options
@model_option
@click.option("--system", metavar="TEXT", help="A system message to begin with.")
@sampling_options
@timeout_option
def chat(client: AsyncClient, model: str, system: str | None, timeout: float | None, **sampling: Any) -> None:
    """Talk with the model. Each line is a turn; the model sees the whole conversation.

    /reset forgets it, /quit or Ctrl-D ends, /help lists these. Ctrl-C stops the current answer; what came of it stays
    in the conversation.
    """
    options = options_of(model, sampling)
    conversation = Conversation(system or "")
    run_async(check_model(client, model))
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() editing and history
        click.echo(_COMMANDS, err=True)
    while (line := _read_turn()) is not None:
        if line == "/quit":
            break
        if line == "/reset":
            conversation = Conversation(system or "")
            continue
        if _COMMAND.match(line):
            known = line.split()[0] == "/help"
            click.echo(_COMMANDS if known else f"{line.split()[0]} is not a command. {_COMMANDS}", err=True)
            continue
        if not line:
            continue
        parts: list[str] = []
        try:
            # A loop per turn: between turns nothing runs, so a blocked prompt can hold nothing up.
            answer = asyncio.run(reply(client, conversation.asking(line), options, timeout, parts))
        except (KeyboardInterrupt, asyncio.CancelledError):
            click.echo(" [stopped]", err=True)
            conversation.add_user(line)
            conversation.add(ChatMessage("assistant", "".join(parts)))
        except GatewayLostError:
            raise
        except RequestError as error:
            # Such as a conversation that has outgrown the context: the user can still /reset.
            click.echo(to_text(error), err=True)
            continue
        else:
            conversation.take(line, answer, continues=False)
        show_text("\n")


def _read_turn() -> str | None:
    """The next line without space around it; None at the end of input, or at Ctrl-C while nothing runs.

    Raises errors.InvalidFieldError for input that is not UTF-8, unless somebody is there to type it again.
    """
    try:
        if not sys.stdin.isatty():
            line = read_line()
            return None if line is None else line.strip()
        text = input("> ")
        text.encode("utf-8")
        return text.strip()
    except UnicodeError:
        click.echo("that was not UTF-8", err=True)
        return ""
    except (EOFError, KeyboardInterrupt):
        click.echo(err=True)
        return None
