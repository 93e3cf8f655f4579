"""``tercet tokenize``: the token ids of a text."""

from __future__ import annotations

import json

import click

from tercet.cli.asking import CONTROL_TIMEOUT_S, address_option, model_option, read_text, run_async
from tercet.client import ChatMessage, Client


async def token_ids_of(address: str, text: str, model: str, *, chat: bool) -> tuple[int, ...]:
    """Raises errors.RequestError."""
    async with Client(address) as client:
        prompt = [ChatMessage("user", text)] if chat else text
        return await client.tokenize(prompt, model=model, timeout_s=CONTROL_TIMEOUT_S)


@click.command()
@click.argument("text")
@address_option
@model_option
@click.option("--chat", is_flag=True, help="As a user's message, rendered with the model's chat template.")
def tokenize(text: str, address: str, model: str, chat: bool) -> None:
    """Show the token ids of TEXT as a JSON list. TEXT - reads standard input."""
    if text == "-":
        text = read_text()
    click.echo(json.dumps(run_async(token_ids_of(address, text, model, chat=chat))))
