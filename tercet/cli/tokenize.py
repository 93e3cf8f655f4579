"""``tercet tokenize``: the token ids of a text."""

from __future__ import annotations

import json

import click

from tercet.cli.asking import CONTROL_TIMEOUT_S, model_option, read_text, run_async
from tercet.cli.connection import client_options
from tercet.client import AsyncClient, ChatMessage


async def token_ids_of(client: AsyncClient, text: str, model: str, *, chat: bool) -> tuple[int, ...]:
    """Raises errors.RequestError."""
    async with client:
        prompt = [ChatMessage("user", text)] if chat else text
        return await client.tokenize(prompt, model=model, timeout_s=CONTROL_TIMEOUT_S)


@click.command()
@click.argument("text")
@client_options
@model_option
@click.option("--chat", is_flag=True, help="As a user's message, rendered with the model's chat template.")
def tokenize(text: str, client: AsyncClient, model: str, chat: bool) -> None:
    """Show the token ids of TEXT as a JSON list. TEXT - reads standard input."""
    if text == "-":
        text = read_text()
    click.echo(json.dumps(run_async(token_ids_of(client, text, model, chat=chat))))
