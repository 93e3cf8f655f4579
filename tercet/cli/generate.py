"""``tercet generate``: one prompt, one answer."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click

from tercet.cli.asking import (
    CONTROL_TIMEOUT_S,
    address_option,
    model_option,
    options_of,
    read_text,
    run_async,
    sampling_options,
    show_text,
    timeout_option,
)
from tercet.client import Answer, ChatMessage, Client, Options


async def ask(
    address: str, prompt: str, options: Options, *, chat: bool | None, timeout_s: float | None, stream: bool
) -> Answer:
    """Generates. `chat` None: as a user message if the model has a chat template. Raises errors.RequestError."""
    async with Client(address) as client:
        if chat is None:
            chat = (await client.model(options.model, timeout_s=timeout_s or CONTROL_TIMEOUT_S)).chat
        # A model would answer an empty message with anything; an empty prompt the gateway refuses.
        message = [ChatMessage("user", prompt)] if chat and prompt else prompt
        async with client.generate(message, options, timeout_s=timeout_s) as generation:
            return await generation.answer(show_text if stream else None)


def to_json(answer: Answer) -> str:
    """One object on one line."""
    return json.dumps(
        {
            "text": answer.text,
            "token_ids": answer.token_ids,
            "finish_reason": answer.finished.finish_reason,
            "stop": answer.finished.stop,
            "usage": dataclasses.asdict(answer.finished.usage),
            "timings": dataclasses.asdict(answer.finished.timings),
            "request_id": answer.accepted.request_id,
            "model": answer.accepted.model,
            "model_revision": answer.accepted.model_revision,
            "seed": answer.accepted.seed,
        },
        ensure_ascii=False,
    )


@click.command()
@click.argument("prompt")
@address_option
@model_option
@click.option("--chat/--raw", default=None, help="As one user message, or as it stands. Default: --chat if the model "
              "has a chat template.")  # fmt: skip
@sampling_options
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end instead of streaming text.")
def generate(
    prompt: str, address: str, model: str, chat: bool | None, timeout: float | None, as_json: bool, **sampling: Any
) -> None:
    """Continue or answer PROMPT, and stream the text. PROMPT - reads standard input.

    A model with a chat template gets PROMPT as a user's message; --raw sends it as plain text to be continued. Ctrl-C
    cancels the request. On an error the reason and message go to standard error, and the exit code is 1.
    """
    if prompt == "-":
        prompt = read_text()
    options = options_of(model, sampling)
    answer = run_async(ask(address, prompt, options, chat=chat, timeout_s=timeout, stream=not as_json))
    if as_json:
        show_text(to_json(answer))
    show_text("\n")
